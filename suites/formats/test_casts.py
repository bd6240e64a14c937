"""Casts against torch's and torchao's own, bit for bit: on blocks of all magnitudes, ties, subnormals, Inf and NaN among them.

`PRECHECK_SLOW=1` compares 10^6 blocks of each format, in parts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest
import torch

from precheck.formats import E2M1, E2M3, E3M2, E4M3FN, E5M2, FP16, FP32, Format, integers, mx, nvfp4, scaled, tiles
from precheck.formats.casting import cast, spacing
from precheck.formats.tiles import COLUMN, ROW, TENSOR, Tile

PART = 4096  # blocks at a time
BLOCKS = 1_000_000 if os.environ.get("PRECHECK_SLOW") else PART
NARROW = (E4M3FN, E5M2, E3M2, E2M3, E2M1)
every = pytest.mark.parametrize("fmt", NARROW, ids=str)


def blocks(size: int, *, fmt: Format = E2M1, seed: int = 0, alike: bool = False) -> Iterator[torch.Tensor]:
    """Matrices with a block a row: mixed magnitudes, numbers of the format and their midpoints times powers of two, outliers, zeros, Inf, NaN.

    With `alike`, all rows are finite and of a few magnitudes. For scales that several rows share: one NaN would make all of them NaN, and one
    large row would make all others zero.
    """
    draw = torch.Generator().manual_seed(seed)
    grid = torch.arange(1, 2 ** (fmt.precision + 1), dtype=torch.float32)  # half spacings: every other one is a tie
    low, high = (-6, 1) if alike else (-149, 128)
    for _ in range(-(-BLOCKS // PART)):
        magnitude = torch.exp2(torch.randint(low, high, (PART, 1), generator=draw).float())
        x = torch.randn(PART, size, generator=draw) * magnitude
        ties = grid[torch.randint(0, len(grid), (PART, size), generator=draw)]
        ties = ties * torch.exp2(torch.randint(max(low, -12), min(high, 12), (PART, 1), generator=draw).float())
        x = torch.where(torch.rand(PART, 1, generator=draw) < 0.4, ties * torch.sign(x), x)
        x[torch.rand(PART, size, generator=draw) < 0.02] = 0.0
        x[torch.rand(PART, size, generator=draw) < 0.01] *= 1000
        rare = torch.rand(PART, 1, generator=draw)
        x = torch.where(rare < 0.02, torch.zeros_like(x), x)
        if alike:
            yield x
            continue
        one = torch.arange(size)[None] == torch.randint(0, size, (PART, 1), generator=draw)
        for least, value in ((0.02, math.inf), (0.03, -math.inf), (0.04, math.nan), (0.05, FP32.max)):
            x = torch.where((rare >= least) & (rare < least + 0.01) & one, torch.tensor(value), x)
        yield x


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal in all bits; a NaN is a NaN whatever its payload."""
    ours, theirs = ours.float(), theirs.float()
    equal = ours.view(torch.int32) == theirs.view(torch.int32)
    return bool((equal | (ours.isnan() & theirs.isnan())).all())


# --- single numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [E4M3FN, E5M2], ids=str)
def test_eight_bits_are_torchs_own_cast(fmt: Format) -> None:
    for x in blocks(32, fmt=fmt):
        held = x if not fmt.saturates else torch.where(x.isnan(), x, x.clamp(-fmt.max, fmt.max))  # torch before 2.12 gives NaN beyond 464
        assert same(cast(x, fmt, saturate=False), held.to(fmt.dtype))
        assert same(cast(x, fmt), x.clamp(-fmt.max, fmt.max).to(fmt.dtype))


@pytest.mark.parametrize("fmt", [E3M2, E2M3, E2M1], ids=str)
def test_six_and_four_bits_are_torchaos_own_cast(fmt: Format) -> None:
    """Of numbers as they are, Inf among them. NaN stays NaN here; torchao's cast to a format without NaN makes a number of it."""
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    name = {E3M2: "f6_e3m2", E2M3: "f6_e2m3", E2M1: "f4"}[fmt]
    to_codes, back = getattr(kernels, f"f32_to_{name}_unpacked"), getattr(kernels, f"{name}_unpacked_to_f32")
    for x in (*blocks(32, fmt=fmt), *blocks(32, fmt=fmt, alike=True)):
        held = torch.where(x.isnan(), torch.ones_like(x), x)
        assert same(cast(held, fmt), back(to_codes(held)))
        assert torch.equal(cast(x, fmt).isnan(), x.isnan())


@every
def test_every_number_its_midpoints_and_their_neighbours_are_rounded_as_the_format_says(fmt: Format) -> None:
    steps = torch.arange(0, 2**fmt.precision * 8, dtype=torch.float64) * 2.0 ** (fmt.min_exponent - fmt.precision - 1)
    x = (steps[:, None] * torch.exp2(torch.arange(fmt.max_exponent - fmt.min_exponent + 2).double())).reshape(-1).float()
    x = torch.cat([x, torch.nextafter(x, torch.tensor(math.inf)), torch.nextafter(x, torch.tensor(-math.inf))])
    x = torch.cat([x, -x])
    expected = torch.tensor([max(-fmt.max, min(fmt.max, fmt.round(float(each)))) for each in x])
    assert same(cast(x, fmt), expected)


@every
def test_by_chance_the_neighbours_are_drawn_in_proportion(fmt: Format) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.tensor([1.0, 1.03, 1.2, fmt.max * 0.97, fmt.min_subnormal * 0.3, -1.2, -fmt.min_subnormal * 1.7, 0.0, -0.0])
    many = 40_000
    drawn = cast(x.expand(many, -1), fmt, rounding="stochastic", generator=draw)
    step = spacing(x, fmt)
    below, above = torch.floor(x / step) * step, torch.ceil(x / step) * step
    assert bool(((drawn == below) | (drawn == above)).all())
    share = (x - below) / step
    spread = 5 * step * (share * (1 - share) / many).sqrt()  # five standard errors
    assert bool(((drawn.mean(0) - x).abs() <= spread + 1e-6 * step).all())
    assert torch.equal(drawn[0].signbit() & (x == 0), x.signbit() & (x == 0))


def test_by_chance_numbers_of_the_format_and_what_lies_beyond_stay() -> None:
    x = torch.tensor([6.0, -6.0, 0.5, 100.0, math.inf, -math.inf, math.nan])
    drawn = cast(x, E2M1, rounding="stochastic")
    assert drawn[:6].tolist() == [6.0, -6.0, 0.5, 6.0, 6.0, -6.0]
    assert math.isnan(drawn[6])


def test_beyond_the_largest_comes_inf_where_the_format_has_it() -> None:
    x = torch.tensor([57344.0, 61439.0, 61440.0, -1e9])
    assert cast(x, E5M2, saturate=False).tolist() == [57344.0, 57344.0, math.inf, -math.inf]
    assert cast(x, E5M2).tolist() == [57344.0, 57344.0, 57344.0, -57344.0]
    assert cast(x, FP16, saturate=False).tolist() == x.half().float().tolist()


def test_a_format_as_wide_as_float32s_exponent_is_refused() -> None:
    with pytest.raises(ValueError, match="fp32 reaches as far down as float32"):
        cast(torch.ones(2), FP32)


@pytest.mark.parametrize("layout", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:1].expand(8, -1)], ids=["t", "slice", "expand"])
def test_a_cast_does_not_depend_on_the_layout(layout: object) -> None:
    view = layout(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))  # type: ignore[operator]
    assert torch.equal(cast(view, E2M1), cast(view.contiguous(), E2M1))


# --- blocks -----------------------------------------------------------------------------------------------------------

MODES = ("floor", "ceil", "even", "rceil")


@every
@pytest.mark.parametrize("mode", MODES)
def test_mx_blocks_are_torchaos(fmt: Format, mode: mx.Mode) -> None:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    kinds = {"fp8-e4m3fn": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2, "fp6-e3m2": "fp6_e3m2", "fp6-e2m3": "fp6_e2m3"}
    kind = kinds.get(fmt.name, getattr(torch, "float4_e2m1fn_x2", None))
    for x in blocks(mx.BLOCK, fmt=fmt):
        scale, data = mx_tensor.to_mx(x, kind, mx.BLOCK, mx_tensor.ScaleCalculationMode[mode.upper()])
        elements, biased = mx.quantised(x, fmt, mode=mode)
        assert torch.equal(biased, scale.view(torch.uint8).view(-1, 1).to(torch.int32))
        theirs = mx_tensor.to_dtype(data, scale, kind, mx.BLOCK, torch.float32)
        assert same(mx.dequantised(elements, biased), theirs.view(x.shape))


@pytest.mark.parametrize("two_levels", [False, True], ids=["blocks", "blocks and tensor"])
def test_nvfp4_blocks_are_torchaos(two_levels: bool) -> None:
    nvfp4_tensor = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    for x in (*blocks(nvfp4.BLOCK), *blocks(nvfp4.BLOCK, alike=True)):
        finite = torch.where(x.isfinite(), x, torch.sign(x))  # one Inf would make the tensor's scale Inf, and all of it NaN
        over = nvfp4.tensor_scale(finite.abs().amax()) if two_levels else None
        if over is not None:
            assert torch.equal(over, nvfp4_tensor.per_tensor_amax_to_scale(finite.abs().amax()))
        scales, data = nvfp4_tensor.nvfp4_quantize(x, per_tensor_scale=over)
        elements, ours = nvfp4.quantised(x, over=over)
        assert same(ours, scales.float().view(ours.shape))
        theirs = kernels.f4_unpacked_to_f32(kernels.unpack_uint4(data.contiguous())).view(x.shape)
        number = ~elements.isnan()  # where it is NaN, torchao has a number: e2m1 has no NaN
        assert same(elements[number], theirs[number])
        assert bool((number | ~x.isfinite().all(1, keepdim=True)).all())


@pytest.mark.parametrize("power", [False, True], ids=["float32", "power of two"])
@pytest.mark.parametrize("fmt", [E4M3FN, E5M2], ids=str)
@pytest.mark.parametrize("tile", [TENSOR, ROW, COLUMN], ids=["tensor", "row", "column"])
def test_float8_under_a_float32_scale_is_torchaos(fmt: Format, tile: Tile, power: bool) -> None:
    utils = pytest.importorskip("torchao.float8.float8_utils")
    granularity = pytest.importorskip("torchao.float8.config").ScalingGranularity
    dim = {TENSOR: None, ROW: 1, COLUMN: 0}[tile]
    kind = granularity.TENSORWISE if dim is None else granularity.AXISWISE
    for x in blocks(32, fmt=fmt) if tile is ROW else (*blocks(32, fmt=fmt, alike=True), next(blocks(32, fmt=fmt))):
        scale = utils.tensor_to_scale(x, fmt.dtype, scaling_granularity=kind, axiswise_dim=dim, round_scales_to_power_of_2=power)
        theirs = utils.to_fp8_saturated(x * scale, fmt.dtype)
        elements, by = scaled.quantised(x, fmt, tile=tile, power_of_two=power)
        assert same(by, scale.reshape(by.shape))
        assert same(elements, theirs)


def halves(kind: integers.Integers, symmetric: bool) -> Iterator[torch.Tensor]:
    """Whole and half steps, times powers of two down to subnormal ones: half of all elements are ties."""
    draw = torch.Generator().manual_seed(1)
    end = (kind.most - kind.least) / 2 if symmetric else float(kind.most - kind.least)
    for power in (0, -20, 40, -125, -145):
        x = torch.randint(0, int(2 * end), (PART, 64), generator=draw) / 2 - (end if symmetric else 0)
        x[:, ::32] = end  # each group has it
        x[:, 1::32] = -end if symmetric else 0.0
        yield x * 2.0**power


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "with zero points"])
@pytest.mark.parametrize("kind", [integers.INT8, integers.INT4, integers.UINT4], ids=str)
@pytest.mark.parametrize("tile", [TENSOR, ROW, integers.group(32)], ids=["tensor", "channel", "group"])
def test_integers_are_torchaos(kind: integers.Integers, tile: Tile, symmetric: bool) -> None:
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    mapping = primitives.MappingType.SYMMETRIC if symmetric else primitives.MappingType.ASYMMETRIC
    for x in (*halves(kind, symmetric), *(blocks(64, alike=tile is TENSOR))):
        held = torch.where(x.abs() < 1e30, x, torch.ones_like(x))  # no integer stands for Inf or NaN
        rows, columns = tile.extents(held)
        scale, zero = primitives.choose_qparams_affine(
            held, mapping, (rows, columns), torch.int8, kind.least, kind.most, zero_point_dtype=torch.float32
        )
        ours, zeros = integers.parameters(held, kind, tile=tile, symmetric=symmetric)
        assert same(ours, scale.reshape(ours.shape))
        assert torch.equal(zeros, zero.reshape(zeros.shape))
        theirs = primitives.quantize_affine(held, (rows, columns), scale, zero.to(torch.int32), torch.int8, kind.least, kind.most)
        codes = integers.quantised(held, kind, ours, zeros, tile)
        assert torch.equal(codes, theirs.float())
        back = primitives.dequantize_affine(theirs, (rows, columns), scale, zero.to(torch.int32), torch.int8, kind.least, kind.most)
        assert same(integers.dequantised(codes, ours, zeros, tile), back)


def test_tiles_that_do_not_divide_a_tensor_end_in_smaller_ones() -> None:
    x = torch.arange(1.0, 36.0).view(5, 7)
    assert tiles.amax(x, Tile(2, 3)).tolist() == [[10, 13, 14], [24, 27, 28], [31, 34, 35]]
    assert torch.equal(tiles.spread(tiles.amax(x, Tile(2, 3)), x, Tile(2, 3))[4], torch.tensor([31.0, 31, 31, 34, 34, 34, 35]))
