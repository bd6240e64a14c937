"""The formats against torch's own casts, their bit patterns, and the facts that the tolerances and messages rest on.

Torch casts to every narrow dtype through float32. So where a float64 is not a float32, the cast rounds twice, and it is
`fmt.round(FP32.round(x))` that it must equal; on float32 values it must equal `fmt.round(x)`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from precheck.formats import BF16, E2M1, E2M3, E3M2, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, TF32, Format, of_dtype

SIXTEEN = (BF16, FP16)
EIGHT = (E4M3FN, E5M2)
NARROW = SIXTEEN + EIGHT
ALL = tuple(FORMATS.values())
STORED = tuple(fmt for fmt in ALL if fmt.dtype_name)
TIE = 0.00390625  # half an ulp of bf16 in [1, 2)

brief = settings(max_examples=100, deadline=None, database=None)
every_format = pytest.mark.parametrize("fmt", ALL, ids=str)
every_stored = pytest.mark.parametrize("fmt", STORED, ids=str)
every_narrow = pytest.mark.parametrize("fmt", NARROW, ids=str)

doubles = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)


def near(fmt: Format) -> st.SearchStrategy[float]:
    """Floats of the magnitudes that the format tells apart, subnormals and the first overflows included."""
    steps = min(4 << fmt.precision, 1 << 52)  # a quarter of an ulp, so that ties and their surroundings are common
    exponents = st.integers(fmt.min_exponent - fmt.precision - 1, min(math.frexp(fmt.max)[1] + 1, 1023))
    return st.builds(
        lambda significand, exponent, sign: sign * math.ldexp(significand, exponent),
        st.floats(0.5, 1.0) | st.integers(steps, 2 * steps).map(lambda n: n / steps / 2),
        exponents,
        st.sampled_from((1.0, -1.0)),
    )


def cast(x: float, fmt: Format) -> float:
    """What torch makes of a float64 scalar in the dtype of the format."""
    return torch.tensor(x, dtype=torch.float64).to(fmt.dtype).double().item()


SATURATES = math.isfinite(cast(1e9, E4M3FN))
"""Whether this torch's cast to e4m3fn ends at 448. Under torch 2.9 to 2.11 it makes NaN of what would round beyond."""


def saturated_elsewhere(x: float, fmt: Format) -> bool:
    """Whether x lies where this torch gives NaN and later ones the largest number."""
    return fmt.saturates and not SATURATES and abs(x) > fmt.max + fmt.ulp(fmt.max) / 2


def same(got: float, expected: float) -> bool:
    """Equal with the same sign of zero, or both nan."""
    if math.isnan(expected):
        return math.isnan(got)
    return got == expected and math.copysign(1.0, got) == math.copysign(1.0, expected)


def patterns(fmt: Format) -> list[float]:
    """Every finite number of a narrow format in increasing order, zero once, as torch decodes all the bit patterns."""
    bits = torch.arange(256, dtype=torch.uint8) if fmt in EIGHT else torch.arange(1 << 16).to(torch.int16)
    values = bits.view(fmt.dtype).double()
    return sorted(set(values[values.isfinite()].tolist()))


def around_ties(fmt: Format) -> torch.Tensor:
    """Every midpoint of adjacent non-negative numbers of the format, and the float32 values right beside it."""
    values = torch.tensor(patterns(fmt), dtype=torch.float64)
    values = torch.cat([values[values >= 0], torch.tensor([fmt.max + fmt.ulp(fmt.max)], dtype=torch.float64)])
    middle = ((values[:-1] + values[1:]) / 2).float()
    infinity = torch.full_like(middle, math.inf)
    return torch.cat([torch.nextafter(middle, -infinity), middle, torch.nextafter(middle, infinity)])


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "precision", "largest", "min_normal", "min_subnormal"),
    [
        (BF16, 8, 3.3895313892515355e38, -126, -133),
        (FP16, 11, 65504.0, -14, -24),
        (TF32, 11, 3.4011621342146535e38, -126, -136),
        (E4M3FN, 4, 448.0, -6, -9),
        (E5M2, 3, 57344.0, -14, -16),
        (E3M2, 3, 28.0, -2, -4),
        (E2M3, 4, 7.5, 0, -3),
        (E2M1, 2, 6.0, 0, -1),
        (FP32, 24, 3.4028234663852886e38, -126, -149),
        (FP64, 53, 1.7976931348623157e308, -1022, -1074),
    ],
    ids=lambda value: str(value) if isinstance(value, Format) else "",
)
def test_table_of_formats(fmt: Format, precision: int, largest: float, min_normal: int, min_subnormal: int) -> None:
    """Each format has the bits, roundoff and range of the published tables (exponents of two for the small end)."""
    assert fmt.precision == precision
    assert fmt.max == largest
    assert fmt.unit_roundoff == 2.0**-precision
    assert fmt.epsilon == 2 * fmt.unit_roundoff
    assert fmt.min_normal == 2.0**min_normal
    assert fmt.min_subnormal == 2.0**min_subnormal


@every_stored
def test_range_is_that_of_torch(fmt: Format) -> None:
    """Largest, epsilon and smallest normal are torch.finfo's, read as doubles."""
    info = torch.finfo(fmt.dtype)
    assert (fmt.max, fmt.epsilon, fmt.min_normal) == (info.max, info.eps, info.smallest_normal)


def test_formats_without_an_infinity_saturate() -> None:
    """Saturation belongs to those, and to no other."""
    assert [fmt for fmt in ALL if fmt.saturates] == [E4M3FN, E3M2, E2M3, E2M1]


def test_formats_by_name() -> None:
    """The mapping holds each format under its own name, prints as that name, and cannot be written to."""
    assert list(FORMATS) == ["bf16", "fp16", "fp32", "fp64", "tf32", "fp8-e4m3fn", "fp8-e5m2", "fp6-e3m2", "fp6-e2m3", "fp4-e2m1"]
    assert all(str(fmt) == name == fmt.name for name, fmt in FORMATS.items())
    with pytest.raises(TypeError):
        FORMATS["bf16"] = FP16  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        BF16.precision = 9  # type: ignore[misc]


@every_stored
def test_of_dtype_inverts_dtype(fmt: Format) -> None:
    """A format is found by its dtype, by the dtype's name, and by the name with torch's prefix."""
    assert of_dtype(fmt.dtype) is of_dtype(str(fmt.dtype)) is of_dtype(str(fmt.dtype_name)) is fmt


def test_tf32_is_stored_as_float32() -> None:
    """Tf32 has no dtype of its own: it reads as float32, and float32 is never taken for tf32."""
    assert TF32.dtype_name is None
    assert TF32.dtype is torch.float32
    assert of_dtype(torch.float32) is FP32


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fnuz, "bf17", "tf32", "None"], ids=str)
def test_of_dtype_refuses_the_unknown(dtype: torch.dtype | str) -> None:
    """A dtype without a format is refused by name, and the message lists every known one."""
    with pytest.raises(ValueError, match="no number format is known for dtype") as caught:
        of_dtype(dtype)
    assert str(dtype) in str(caught.value)
    assert all(str(fmt.dtype_name) in str(caught.value) for fmt in STORED)


# --- rounding against torch -------------------------------------------------------------------------------------------


@every_stored
@brief
@given(data=st.data())
def test_round_is_the_cast_of_torch(fmt: Format, data: st.DataObject) -> None:
    """On values that float32 holds, rounding equals torch's cast at every magnitude, signed zeros included."""
    x = data.draw(st.floats(width=32) | near(fmt).map(FP32.round))
    assume(not saturated_elsewhere(x, fmt))
    assert same(fmt.round(x), cast(x, fmt))


@every_narrow
@brief
@given(data=st.data())
def test_torch_casts_float64_through_float32(fmt: Format, data: st.DataObject) -> None:
    """On any float64, torch's cast is ours applied twice: first to float32, then to the format."""
    x = data.draw(doubles | near(fmt))
    assume(not saturated_elsewhere(x, fmt))
    assert same(fmt.round(FP32.round(x)), cast(x, fmt))


@every_narrow
def test_round_once_differs_from_the_cast_of_a_float64(fmt: Format) -> None:
    """A float64 hair above a tie rounds up, though torch, having lost the hair in float32, rounds it to even."""
    x = 1 + fmt.unit_roundoff + 2.0**-40
    assert fmt.round(x) == 1 + fmt.epsilon
    assert cast(x, fmt) == 1.0


@brief
@given(doubles | near(FP32))
def test_float32_rounds_as_torch_does(x: float) -> None:
    """Every float64 rounds to float32 as torch casts it: that step is rounded once by both."""
    assert same(FP32.round(x), cast(x, FP32))


@every_narrow
def test_every_tie_rounds_as_torch_does(fmt: Format) -> None:
    """Every midpoint of the format, and the float32 values beside it, round as torch's vectorised cast, either sign."""
    xs = torch.tensor([x for x in around_ties(fmt).tolist() if not saturated_elsewhere(x, fmt)])
    got = torch.tensor([fmt.round(x) for x in xs.tolist()], dtype=torch.float64)
    assert torch.equal(got, xs.to(fmt.dtype).double())
    assert torch.equal(-got, (-xs).to(fmt.dtype).double())


@every_narrow
def test_every_number_rounds_to_itself(fmt: Format) -> None:
    """All bit patterns of the format that decode to a finite number are fixed points."""
    values = patterns(fmt)
    assert [fmt.round(x) for x in values] == values


@brief
@given(doubles)
def test_float64_is_a_python_float(x: float) -> None:
    """Rounding to float64 changes nothing."""
    assert same(FP64.round(x), x)


@brief
@given(near(FP16).filter(lambda x: 2.0**-14 <= abs(x) <= 65504))
def test_tf32_has_the_significand_of_fp16(x: float) -> None:
    """Tf32 rounds as fp16 does wherever fp16 is normal; it has no dtype to be compared with."""
    assert TF32.round(x) == FP16.round(x)


@brief
@given(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_tf32_rounds_the_low_bits_of_float32(x: float) -> None:
    """Tf32 is float32 with its last 13 bits rounded off, as integer arithmetic on the bit pattern does it."""
    bits = torch.tensor([x]).view(torch.int32).long()
    bits = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    assert TF32.round(x) == bits.to(torch.int32).view(torch.float32).item()


@every_format
@brief
@given(data=st.data())
def test_round_is_nearest(fmt: Format, data: st.DataObject) -> None:
    """Within range the error is at most half an ulp, and in the normal range at most the unit roundoff, exactly."""
    x = data.draw(near(fmt).filter(lambda x: abs(x) <= fmt.max))
    error = abs(Fraction(fmt.round(x)) - Fraction(x))
    assert 2 * error <= Fraction(fmt.ulp(x))
    assert abs(x) < fmt.min_normal or error <= Fraction(fmt.unit_roundoff) * abs(Fraction(x))


@every_format
@brief
@given(data=st.data())
def test_round_is_monotone_odd_and_idempotent(fmt: Format, data: st.DataObject) -> None:
    """Rounding keeps order, commutes with the sign, and does nothing the second time."""
    low, high = sorted(data.draw(st.tuples(near(fmt) | doubles, near(fmt) | doubles)))
    assert fmt.round(low) <= fmt.round(high)
    assert same(fmt.round(-low), -fmt.round(low))
    assert same(fmt.round(fmt.round(low)), fmt.round(low))


@every_format
def test_overflow(fmt: Format) -> None:
    """Beyond the last number is infinity, or the last number where the format saturates; nan stays nan."""
    end = fmt.max if fmt.saturates else math.inf
    assert fmt.round(fmt.max) == fmt.max
    assert (fmt.round(fmt.max + fmt.ulp(fmt.max)), fmt.round(-fmt.max - fmt.ulp(fmt.max))) == (end, -end)
    assert (fmt.round(math.inf), fmt.round(-math.inf)) == (end, -end)
    assert math.isnan(fmt.round(math.nan))


@pytest.mark.skipif(not SATURATES, reason="this torch's cast to e4m3fn makes NaN of what lies beyond 464")
@pytest.mark.parametrize("x", [448.0, 464.0, 465.0, 480.0, 1e9, 1e300, math.inf])
def test_e4m3fn_saturates_as_torch_does(x: float) -> None:
    """Torch makes 448 of everything from there up, infinity included, and nan of nan alone."""
    assert E4M3FN.round(x) == cast(x, E4M3FN) == 448.0
    assert E4M3FN.round(-x) == cast(-x, E4M3FN) == -448.0
    assert math.isnan(cast(math.nan, E4M3FN))


# --- spacing ----------------------------------------------------------------------------------------------------------


@every_narrow
def test_every_neighbour(fmt: Format) -> None:
    """The neighbours of every number are those beside it in the sorted list of all bit patterns."""
    values = patterns(fmt)
    end = fmt.max if fmt.saturates else math.inf
    assert [fmt.neighbours(x) for x in values] == list(zip([-end, *values[:-1]], [*values[1:], end], strict=True))


@every_narrow
def test_every_spacing(fmt: Format) -> None:
    """The ulp is the gap to the next pattern away from zero, `spacing_below` the gap to the one towards it."""
    values = [x for x in patterns(fmt) if x >= 0]
    gaps = [high - low for low, high in itertools.pairwise(values)]
    assert [fmt.ulp(x) for x in values[:-1]] == [fmt.ulp(-x) for x in values[:-1]] == gaps
    assert [fmt.spacing_below(x) for x in values[1:]] == [fmt.spacing_below(-x) for x in values[1:]] == gaps
    assert fmt.ulp(fmt.max) == fmt.ulp(2 * fmt.max) == gaps[-1]


@pytest.mark.parametrize("fmt", [FP32, *SIXTEEN], ids=str)
@brief
@given(data=st.data())
def test_neighbours_are_nextafter_of_torch(fmt: Format, data: st.DataObject) -> None:
    """Where torch has nextafter, it names the same neighbours, infinities included."""
    x = data.draw((near(fmt) | st.floats(width=32, allow_nan=False)).map(fmt.round))
    stored = torch.tensor(x, dtype=fmt.dtype)
    ends = (torch.tensor(-math.inf, dtype=fmt.dtype), torch.tensor(math.inf, dtype=fmt.dtype))
    expected = tuple(torch.nextafter(stored, end).item() for end in ends)
    if math.isfinite(x):
        assert fmt.neighbours(x) == expected
    else:
        assert fmt.neighbours(x) == ((fmt.max, math.inf) if x > 0 else (-math.inf, -fmt.max))


@brief
@given(finite)
def test_float64_spacing_is_that_of_python(x: float) -> None:
    """In float64 the ulp and the neighbours are those of the math module."""
    assert FP64.ulp(x) == math.ulp(x)
    assert FP64.neighbours(x) == (math.nextafter(x, -math.inf), math.nextafter(x, math.inf))


@every_format
def test_spacing_halves_below_a_power_of_two(fmt: Format) -> None:
    """Below 1.0 numbers lie twice as dense as above it; at the smallest normal and at zero they do not."""
    one = max(1.0, 2 * fmt.min_normal)  # e2m3 and e2m1 have no normal numbers below 1
    assert fmt.ulp(one) == 2 * fmt.spacing_below(one) == one * fmt.epsilon
    assert fmt.half_ulp(one) == (one * fmt.epsilon / 4, one * fmt.epsilon / 2)
    assert fmt.half_ulp(-one) == (one * fmt.epsilon / 2, one * fmt.epsilon / 4)
    assert fmt.ulp(fmt.min_normal) == fmt.spacing_below(fmt.min_normal) == fmt.min_subnormal
    assert fmt.ulp(0.0) == fmt.spacing_below(0.0) == fmt.min_subnormal


@every_format
def test_spacing_beyond_the_range(fmt: Format) -> None:
    """Nan has no spacing; infinity is an infinite step from anything, unless it is stored as the last number."""
    assert math.isnan(fmt.ulp(math.nan))
    assert math.isnan(fmt.spacing_below(math.nan))
    assert all(map(math.isnan, (*fmt.neighbours(math.nan), *fmt.half_ulp(math.nan))))
    assert fmt.ulp(math.inf) == math.inf
    if fmt.saturates:
        assert fmt.neighbours(math.inf) == fmt.neighbours(fmt.max) == (fmt.max - fmt.ulp(fmt.max), fmt.max)
        assert fmt.half_ulp(math.inf) == (fmt.ulp(fmt.max) / 2, math.inf)
    else:
        assert fmt.neighbours(math.inf) == (fmt.max, math.inf)
        assert fmt.half_ulp(math.inf) == (math.inf, math.inf)


# --- absorption -------------------------------------------------------------------------------------------------------


def moves(fmt: Format, stored: float, delta: float) -> bool:
    """Whether the exact sum is nearer to another number than to the stored one: `absorbs` in rational arithmetic."""
    total, here = Fraction(stored) + Fraction(delta), Fraction(stored)
    below, above = fmt.neighbours(stored)
    for other in (x for x in (below, above) if math.isfinite(x) and x != stored):
        gap, rest = abs(total - Fraction(other)), abs(total - here)
        if gap < rest or (gap == rest and Fraction(stored) / Fraction(fmt.ulp(stored)) % 2):
            return True
    # Infinity is no Fraction; it begins half an ulp past the maximum.
    return abs(total) >= Fraction(fmt.max) + Fraction(fmt.ulp(fmt.max)) / 2 and not fmt.saturates


@every_format
@brief
@given(data=st.data())
def test_absorbs_is_exact(fmt: Format, data: st.DataObject) -> None:
    """Absorption agrees with rational arithmetic on any step, ties and hairs beside ties included."""
    stored = fmt.round(data.draw(near(fmt).filter(lambda x: abs(x) <= fmt.max)))
    tie = data.draw(st.sampled_from([fmt.ulp(stored) / 2, fmt.ulp(stored) / 4]))
    hairs = [tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf), 3 * tie]
    delta = data.draw(st.sampled_from([*hairs, *(-hair for hair in hairs)]) | near(fmt) | finite)
    assert fmt.absorbs(stored, delta) is not moves(fmt, stored, delta)


@pytest.mark.parametrize("fmt", SIXTEEN, ids=str)
@brief
@given(data=st.data())
def test_absorbs_is_what_torch_does(fmt: Format, data: st.DataObject) -> None:
    """Torch's sum of two tensors of the format moves exactly where the step is not absorbed.

    The steps are sixteenths of an ulp, so that torch's intermediate sum in float32 is exact.
    """
    x = fmt.round(data.draw(st.floats(2.0**-10, 2.0**10) | st.floats(-(2.0**10), -(2.0**-10))))
    delta = fmt.round(fmt.ulp(x) * data.draw(st.floats(-2, 2).map(lambda n: round(16 * n) / 16)))
    total = torch.tensor(x, dtype=fmt.dtype) + torch.tensor(delta, dtype=fmt.dtype)
    assert fmt.absorbs(x, delta) is (total.item() == x)


@every_format
def test_absorbs_at_the_edges(fmt: Format) -> None:
    """Zero is always absorbed, and NaN never. Infinity absorbs every finite step, and a saturated value every step away from zero."""
    assert fmt.absorbs(fmt.min_subnormal, 0.0)
    assert not fmt.absorbs(math.nan, 0.0)
    assert not fmt.absorbs(1.0, math.nan)
    assert fmt.absorbs(math.inf, -0.125)
    assert fmt.absorbs(fmt.max, math.inf) is fmt.absorbs(fmt.max, fmt.max) is fmt.saturates
    assert not fmt.absorbs(0.0, fmt.min_subnormal)


# --- the facts of lost updates ----------------------------------------------------------------------------------------


def test_a_bf16_weight_and_its_spacing() -> None:
    """The bf16 value of 1.23456, its neighbours and its spacing."""
    assert BF16.round(1.23456) == 1.234375
    assert BF16.neighbours(1.23456) == (1.2265625, 1.2421875)
    assert BF16.ulp(1.23456) == 0.0078125
    assert BF16.half_ulp(1.23456) == (TIE, TIE)


@pytest.mark.parametrize("fmt", SIXTEEN, ids=str)
def test_a_small_update_is_lost(fmt: Format) -> None:
    """An update of 1e-4 leaves 1.23456 where it was, a thousand times over, in the arithmetic here and in torch's."""
    weight, stored = torch.tensor(1.23456, dtype=fmt.dtype), fmt.round(1.23456)
    assert fmt.absorbs(1.23456, -1e-4)
    for _ in range(1000):
        stored = fmt.round(stored - 1e-4)
        weight -= 1e-4
    assert stored == weight.item() == 1.234375


def test_float32_keeps_the_update() -> None:
    """In float32 the same update moves the weight to the float32 number nearest 1.23446."""
    assert not FP32.absorbs(1.23456, -1e-4)
    assert FP32.round(FP32.round(1.23456) - FP32.round(1e-4)) == pytest.approx(1.2344599962, abs=5e-11)


def test_the_claimed_result_is_not_a_bf16_number() -> None:
    """1.23446, sometimes given for bf16(1.23456) - 1e-4, is no bf16 number; it rounds to where the weight stayed."""
    assert BF16.round(1.23446) == 1.234375 != 1.23446
    assert 1.23446 not in patterns(BF16)


def test_the_tie_is_absorbed_and_the_next_step_is_not() -> None:
    """A tie stays, the significand 158 being even; the next float64 above it moves, and the next bf16 does in torch."""
    assert BF16.round(1.23456) / BF16.ulp(1.23456) == 158
    assert BF16.absorbs(1.23456, -TIE)
    assert BF16.absorbs(1.23456, TIE)
    assert not BF16.absorbs(1.23456, -math.nextafter(TIE, 1))
    weight = torch.tensor(1.23456, dtype=torch.bfloat16)
    assert (weight - TIE).item() == 1.234375
    assert (weight - BF16.neighbours(TIE)[1]).item() == 1.2265625


def test_an_odd_significand_moves_at_the_tie() -> None:
    """The neighbour, whose significand is odd, moves at the tie and stays just below it."""
    assert not BF16.absorbs(1.2265625, TIE)
    assert not BF16.absorbs(1.2265625, -TIE)
    assert BF16.absorbs(1.2265625, math.nextafter(TIE, 0))


def test_torch_takes_for_a_tie_what_float32_cannot_tell_from_one() -> None:
    """Torch absorbs the float32 number right above the tie, because its sum is rounded to float32 first."""
    hair = FP32.neighbours(TIE)[1]
    assert not BF16.absorbs(1.0, hair)
    assert (torch.tensor(1.0, dtype=torch.bfloat16) + hair).item() == 1.0


def test_a_weight_of_one_moves_down_before_up() -> None:
    """Below 1.0 the spacing halves: a bf16 norm weight sees 0.0038 downwards and not upwards."""
    assert BF16.round(1.0 - 0.0038) == 0.99609375
    assert BF16.round(1.0 + 0.0038) == 1.0
    assert BF16.half_ulp(1.0) == (2.0**-9, 2.0**-8)
    assert (BF16.absorbs(1.0, -0.0038), BF16.absorbs(1.0, 0.0038)) == (False, True)


@pytest.mark.parametrize(("fmt", "last"), [(BF16, 256), (FP16, 2048), (FP32, 2**24)], ids=str)
def test_a_counter_sticks(fmt: Format, last: int) -> None:
    """Counting by ones stops at 2**precision, here and in torch, and not before."""
    assert fmt.absorbs(last, 1.0)
    assert not fmt.absorbs(last - 1, 1.0)
    assert (torch.tensor(float(last), dtype=fmt.dtype) + 1).item() == last


def test_a_decay_needs_more_than_bf16() -> None:
    """The usual decay 0.999 is 1.0 in bf16, which decays nothing, and 0.99902 in fp16."""
    assert BF16.round(0.999) == 1.0
    assert FP16.round(0.999) == 0.9990234375


def test_adam_epsilon_vanishes_in_fp16() -> None:
    """Adam's default epsilon of 1e-8 is zero in fp16, and so is the square of a gradient below 2**-12.5."""
    assert FP16.round(1e-8) == 0.0
    assert FP16.round(1.7e-4**2) == 0.0
    assert FP16.round(1.8e-4**2) == FP16.min_subnormal
