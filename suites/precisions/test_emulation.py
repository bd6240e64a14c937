"""Emulated formats: the operands of products are the nearest numbers of the format, by integer arithmetic and by brute force."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import _get_current_dispatch_mode

from precheck.formats import E4M3FN, E5M2, TF32
from precheck.precisions import resolve
from precheck.torch_support import emulation
from precheck.torch_support.emulation import gemm_inputs, rounded

brief = settings(max_examples=100, deadline=None, database=None)
floats32 = st.floats(width=32, allow_nan=False)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def tf32(values: numpy.ndarray) -> numpy.ndarray:
    """Nearest-even to a step of 2^13 float32 spacings, on the bit patterns: the low 13 of 23 bits of the mantissa go."""
    bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    low, kept = bits & 0x1FFF, bits & ~numpy.uint64(0x1FFF)
    up = (low > 0x1000) | ((low == 0x1000) & ((kept >> 13) & 1 == 1))
    return (kept + numpy.where(up, 0x2000, 0)).astype(numpy.uint32).view(numpy.float32)


@brief
@given(st.lists(floats32.filter(lambda x: abs(x) < 3.4e38), min_size=1, max_size=50))
def test_tf32_is_nearest_even_bit_for_bit(values: list[float]) -> None:
    array = numpy.array(values, dtype=numpy.float32)
    ours = rounded(torch.from_numpy(array), TF32).numpy()
    assert (ours.view(numpy.uint32) == tf32(array).view(numpy.uint32)).all()


@brief
@given(floats32)
def test_tf32_agrees_with_the_format(value: float) -> None:
    assert float(rounded(torch.tensor([value]), TF32)) == TF32.round(value)


def test_tf32_ties_go_to_even() -> None:
    below, above = 1 + 2**-11, 1 + 3 * 2**-11  # half-way from 1 to 1 + 2^-10, and from there to 1 + 2^-9
    assert rounded(torch.tensor([below, above, -below]), TF32).tolist() == [1.0, 1 + 2**-9, -1.0]


@pytest.mark.parametrize("fmt", [TF32, E4M3FN, E5M2])
def test_what_is_not_finite_stays_as_it_is(fmt: object) -> None:
    result = rounded(torch.tensor([math.inf, -math.inf, math.nan, 1.0]), fmt)  # type: ignore[arg-type]
    assert result[:2].tolist() == [math.inf, -math.inf]
    assert math.isnan(result[2])
    assert result[3] == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 300.0, 1e30])
def test_fp8_operands_lie_on_the_grid_of_e4m3_up_to_one_power_of_two(scale: float, dtype: torch.dtype) -> None:
    values = normal(40, 25, scale=scale).to(dtype)
    result = rounded(values, E4M3FN)
    assert result.dtype is dtype
    exponent = math.floor(math.log2(448 / float(values.abs().max())))
    scaled = result.double() * 2.0**exponent
    assert torch.equal(scaled, torch.from_numpy(numpy.vectorize(E4M3FN.round)(scaled.numpy())))
    nearest = torch.from_numpy(numpy.vectorize(E4M3FN.round)(values.double().numpy() * 2.0**exponent))
    assert torch.equal(scaled, nearest)
    assert 224 < float(scaled.abs().max()) <= 448  # the scale brings the greatest just under the maximum


@pytest.mark.parametrize("empty", [torch.zeros(0, 3), torch.zeros(2, 3), torch.arange(6).view(2, 3)])
def test_fp8_of_nothing_zeros_and_integers_is_themselves(empty: torch.Tensor) -> None:
    assert torch.equal(rounded(empty, E4M3FN), empty)


@pytest.mark.parametrize("value", [3e38, 1e-38, 448.0, 448 * 2.0**-126])
def test_fp8_scales_at_the_ends_of_float32(value: float) -> None:
    result = float(rounded(torch.tensor([value]), E4M3FN))
    assert result == pytest.approx(value, rel=2**-4, abs=0)  # one rounding of 4 bits


@pytest.mark.parametrize("layout", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:1].expand(8, -1)], ids=["t", "slice", "expand"])
def test_rounding_does_not_depend_on_the_layout(layout: object) -> None:
    view = layout(normal(16, 16))  # type: ignore[operator]
    for fmt in (TF32, E4M3FN):
        assert torch.equal(rounded(view, fmt), rounded(view.contiguous(), fmt))


PRODUCTS = {
    "mm": (lambda a, b: a @ b, (8, 8)),
    "bmm": (torch.bmm, (2, 8, 8)),
    "linear with bias": (lambda a, b: F.linear(a, b, b[0]), (8, 8)),
    "addbmm": (lambda a, b: torch.addbmm(torch.zeros(8, 8), a, b), (2, 8, 8)),
    "conv": (lambda a, b: F.conv1d(a, b), (4, 4, 4)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_tf32_products_are_float32_products_of_rounded_operands(name: str) -> None:
    product, shape = PRODUCTS[name]
    a, b = normal(*shape, seed=1), normal(*shape, seed=2)
    with resolve("tf32").step():
        result = product(a, b)
    if name == "linear with bias":
        expected = F.linear(rounded(a, TF32), rounded(b, TF32), b[0])
    else:
        expected = product(rounded(a, TF32), rounded(b, TF32))
    assert torch.equal(result, expected)
    assert not torch.equal(result, product(a, b))


def test_tf32_reaches_into_an_lstm() -> None:
    lstm, x = torch.nn.LSTM(8, 8), normal(1, 2, 8)  # a single time step, whose hidden state is zero
    with resolve("tf32").step():
        result = lstm(x)[0]
        result.sum().backward()
    gradient = lstm.weight_ih_l0.grad.clone()
    lstm.zero_grad()
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(rounded(lstm.weight_ih_l0, TF32))
    expected = lstm(rounded(x, TF32))[0]
    expected.sum().backward()
    assert torch.equal(result, expected)
    assert torch.equal(gradient, lstm.weight_ih_l0.grad)


def test_fp8_rounds_products_with_weights_and_leaves_those_of_two_activations() -> None:
    a, b = normal(2, 8, 8, seed=1), normal(2, 8, 8, seed=2)
    with gemm_inputs(E4M3FN):
        assert torch.equal(torch.bmm(a, b), torch.ops.aten.bmm(a, b))
        inner = a[0] @ b[0]
    assert torch.equal(inner, rounded(a[0], E4M3FN) @ rounded(b[0], E4M3FN))


@pytest.mark.parametrize(("name", "fmt"), [("tf32", TF32), ("fp8-e4m3-mixed", E4M3FN)])
def test_the_products_of_the_backward_pass_are_rounded_too(name: str, fmt: object) -> None:
    x, weight, upstream = normal(8, 8, seed=1), normal(8, 8, seed=2).requires_grad_(), normal(8, 8, seed=3)
    precision = resolve(name)
    with precision.step():
        with precision.autocast():
            out = F.linear(x, weight)
        out.backward(upstream.to(out.dtype))
    cast = (lambda t: t.to(precision.compute_dtype)) if precision.autocasts else (lambda t: t)
    expected = rounded(cast(upstream), fmt).t() @ rounded(cast(x), fmt)  # type: ignore[arg-type]
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected.float())


def test_a_step_and_its_autocast_round_once() -> None:
    precision, a = resolve("tf32"), normal(8, 8)
    with precision.step():
        assert emulation.active()
        modes = _get_current_dispatch_mode()
        with precision.autocast():
            assert _get_current_dispatch_mode() is modes
            assert torch.equal(a @ a, rounded(a, TF32) @ rounded(a, TF32))


def test_autocast_alone_emulates_too() -> None:
    a = normal(8, 8)
    with resolve("tf32").autocast():
        assert torch.equal(a @ a, rounded(a, TF32) @ rounded(a, TF32))


@pytest.mark.parametrize("name", ["tf32", "fp8-e4m3-mixed"])
def test_nothing_is_left_after_the_block_or_an_exception(name: str) -> None:
    a = normal(8, 8)
    plain = a @ a
    with pytest.raises(KeyError), resolve(name).step(), resolve(name).autocast():
        raise KeyError
    assert not emulation.active()
    assert _get_current_dispatch_mode() is None
    assert torch.equal(a @ a, plain)
