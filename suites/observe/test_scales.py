"""The loss scale as a dimension: the factor that is told of a result is what it measures, and what is not known accuses nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from beside import normal, shadow_now
from hypothesis import given, settings
from hypothesis import strategies as st

import precheck
from precheck.observe.shadow.training.loss_scales import LossScales

SCALE = 256.0
Op = Callable[..., torch.Tensor]


@pytest.fixture
def scales() -> Iterator[LossScales]:
    with precheck.watch():
        yield shadow_now().scales


def scaled(scales: LossScales, *shape: int, seed: int = 0, factor: float = SCALE) -> torch.Tensor:
    """Positive numbers, so that roots and quotients are finite, under that scale."""
    tensor = (normal(*shape, seed=seed).abs() + 0.5) * factor
    scales.give(tensor, factor)
    return tensor


def plain(*shape: int, seed: int = 1) -> torch.Tensor:
    return normal(*shape, seed=seed).abs() + 0.5


ONE: dict[str, tuple[Op, float]] = {
    "negative": (torch.neg, 1), "sum": (torch.sum, 1), "mean": (torch.mean, 1), "norm": (torch.norm, 1), "vector norm": (torch.linalg.vector_norm, 1),
    "largest": (torch.amax, 1), "root": (torch.sqrt, 0.5), "inverse root": (torch.rsqrt, -0.5), "reciprocal": (torch.reciprocal, -1),
    "square": (torch.square, 2), "cube": (lambda x: x**3, 3), "view": (lambda x: x.view(-1)[2:], 1), "transposed": (lambda x: x.t(), 1),
    "copy": (lambda x: x.clone(), 1), "wider": (lambda x: x.double(), 1), "number": (lambda x: x * 3.0, 1), "one over": (lambda x: 1.0 / x, -1),
    "itself": (lambda x: x * x, 2), "product": (lambda x: x * plain(4, 4), 1), "quotient": (lambda x: x / plain(4, 4), 1),
    "divisor": (lambda x: plain(4, 4) / x, -1), "matrix": (lambda x: x @ plain(4, 4), 1), "matrices": (lambda x: x @ x, 2),
    "joined": (lambda x: torch.cat([x, 2 * x]), 1), "stacked": (lambda x: torch.stack([x, torch.zeros(4, 4)]), 1),
    "chosen": (lambda x: torch.where(plain(4, 4) > 1, x, torch.zeros(4, 4)), 1), "sum of two": (lambda x: x + 2 * x, 1),
    "difference": (lambda x: x - x.mean(), 1), "into zeros": (lambda x: torch.zeros(4, 4).add_(x), 1), "in place": (lambda x: x.mul_(x), 2),
    "copied into": (lambda x: torch.empty(4, 4).copy_(x), 1), "ratio": (lambda x: x / x.norm(), 0), "fresh": (torch.ones_like, 0),
    "zeroed": (lambda x: x.zero_(), 0), "each": (lambda x: torch._foreach_mul([x, x], 2.0)[1], 1),
    "norms": (lambda x: torch._foreach_norm([x])[0], 1), "roots": (lambda x: torch._foreach_sqrt([x])[0], 0.5),
    "each product": (lambda x: torch._foreach_mul([x], [x])[0], 2),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2)) * (1 + 2j)), 1),
    "modulus": (lambda x: torch.view_as_complex(x.view(4, 2, 2)).abs(), 1),
    "unscaled": (lambda x: x * (1 / SCALE), 0), "shared out": (lambda x: x / (SCALE * 4), 0),
}  # fmt: skip
"""What is done to a tensor under a scale, and the power of the scale that the result carries."""


@pytest.mark.parametrize("name", ONE)
def test_an_op_gives_its_result_the_power_it_should(name: str, scales: LossScales) -> None:
    operation, power = ONE[name]
    assert scales.of(operation(scaled(scales, 4, 4))) == pytest.approx(SCALE**power, rel=1e-6)
    assert not scales.events


MIXED: dict[str, tuple[Op, str]] = {
    "sum": (lambda x, y: x + y, "mixed"), "difference": (lambda x, y: y - x, "mixed"), "in place": (lambda x, y: x.add_(y, alpha=0.1), "mixed"),
    "between": (lambda x, y: torch.lerp(x, y, 0.1), "mixed"), "each": (lambda x, y: torch._foreach_add([x], [y])[0], "mixed"),
    "fused": (lambda x, y: torch.addcmul(y, x, y), "mixed"), "limit": (lambda x, y: x.clamp(max=2.0), "compared"),
    "greater": (lambda x, y: x > y, "compared"), "larger": (torch.maximum, "compared"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_quantities_of_two_scales_that_meet_are_told(name: str, scales: LossScales) -> None:
    operation, kind = MIXED[name]
    operation(scaled(scales, 4), plain(4))
    (event,) = scales.events
    assert event.kind == kind
    assert {event.factor, event.other} == {SCALE, 1.0}


@pytest.mark.parametrize("name", MIXED)
def test_of_one_scale_they_may_meet(name: str, scales: LossScales) -> None:
    operation, _ = MIXED[name]
    if name in ("limit", "fused"):
        operation(plain(4), plain(4))
    else:
        operation(scaled(scales, 4), scaled(scales, 4, seed=2))
    assert not scales.events


@pytest.mark.parametrize("name", MIXED)
def test_what_is_not_known_accuses_nobody(name: str, scales: LossScales) -> None:
    unknown = scaled(scales, 4)
    scales.give(unknown, math.nan)
    MIXED[name][0](unknown, plain(4))
    assert not scales.events


@pytest.mark.parametrize("operation", [
    torch.exp, torch.sigmoid, lambda x: torch.cat([x, plain(4)]), lambda x: x.clamp(max=2.0), lambda x: x + plain(4),
    torch.fft.rfft, lambda x: torch.fft.irfft(torch.fft.rfft(x)),
], ids=["exponential", "sigmoid", "joined with others", "clipped", "added to others", "spectrum", "back from the spectrum"])  # fmt: skip
def test_what_has_no_one_scale_is_not_known(operation: Op, scales: LossScales) -> None:
    assert math.isnan(scales.of(operation(scaled(scales, 4))))


@pytest.mark.parametrize("bound", [0, math.inf, -math.inf])
def test_zero_and_infinity_are_the_same_under_any_scale(bound: float, scales: LossScales) -> None:
    assert scales.of(scaled(scales, 4).clamp(min=bound)) == SCALE
    assert not scales.events


@pytest.mark.parametrize("bound", [1e-12, torch.tensor(1e-8)])
def test_a_guard_against_a_division_by_zero_compares_nothing(bound: object, scales: LossScales) -> None:
    assert scales.of(scaled(scales, 4).abs().clamp(min=bound)) == SCALE
    assert not scales.events


def test_a_guard_that_comes_into_effect_does(scales: LossScales) -> None:
    (1e-20 * scaled(scales, 4)).clamp(min=1e-12)
    assert [event.kind for event in scales.events] == ["compared"]


def test_what_is_not_known_may_be_read_by_python(scales: LossScales) -> None:
    assert math.isfinite(torch.fft.rfft(scaled(scales, 4)).abs().sum().item())
    assert not scales.events


def test_a_number_read_by_python_is_told(scales: LossScales) -> None:
    assert scaled(scales, 4).sum().item() > 0
    assert [(event.kind, event.factor) for event in scales.events] == [("read", SCALE)]


def test_a_storage_that_is_gone_leaves_nothing_behind(scales: LossScales) -> None:
    """The next tensor at the same address is another one."""
    for _ in range(50):
        scaled(scales, 1000)
        assert scales.of(torch.empty(1000)) == 1.0


STEPS: dict[str, Op] = {
    "product": torch.mul, "quotient": torch.div, "matrices": lambda x, y: x @ y / y.sum(), "square": lambda x, y: x.square(),
    "root": lambda x, y: x.sqrt(), "reciprocal": lambda x, y: x.reciprocal(), "normed": lambda x, y: y * x.norm(), "sum": lambda x, y: x + x.mean(),
    "transposed": lambda x, y: x.t(), "joined": lambda x, y: torch.cat([x[:2], x[2:]]), "in place": lambda x, y: x.clone().mul_(y),
    "number": lambda x, y: x * 0.7,
    "each": lambda x, y: torch._foreach_div([x, y], [y, x])[1],
}  # fmt: skip


@given(chain=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), max_size=6), power=st.integers(2, 10))
@settings(max_examples=150, deadline=None)
def test_the_factor_told_is_the_factor_measured(chain: list[tuple[str, bool]], power: int) -> None:
    """A chain of ops in float64 on scaled tensors, beside the same chain on plain ones: each element's ratio is the factor.

    Each op errs by some 1e-15 relative; squares of squares, six at most, multiply that by 2^6.
    """

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for name, turned in chain:
            x, y = STEPS[name](*((y, x) if turned else (x, y))), x
        return x

    one, other, factor = plain(4, 4).double(), plain(4, 4, seed=2).double(), 2.0**power
    without = run(one, other)
    with precheck.watch():
        scales = shadow_now().scales
        first = one * factor
        scales.give(first, factor)
        result = run(first, other.clone())
        predicted, accused = scales.of(result), bool(scales.events)
    if not math.isnan(predicted) and bool(torch.isfinite(without).all() & torch.isfinite(result).all()) and not accused:
        usable = (without.abs() > 1e-250) & (result.abs() > 1e-250)
        torch.testing.assert_close((result / without)[usable], torch.full_like(without, predicted)[usable], rtol=1e-5, atol=0.0)
    assert not accused, "every op of the chain keeps to one scale"


@pytest.mark.parametrize("schema", ["(Tensor grad, Tensor x) -> Tensor", "(Tensor x, Tensor grad_output) -> Tensor",
                                    "(Tensor x, Tensor[] weights, Tensor? grad_output, Tensor? grad_hy) -> Tensor"])  # fmt: skip
def test_a_derivative_has_the_scale_of_the_gradient_wherever_that_comes(schema: str, scales: LossScales) -> None:
    """In cuDNN's kernels of recurrent layers and batch norms the gradient does not come first."""
    library = torch.library.Library("scaled_derivatives", "FRAGMENT")
    name = f"layer{abs(hash(schema))}_backward"
    library.define(name + schema)
    library.impl(name, lambda *given: sum(each for each in given if isinstance(each, torch.Tensor)), "CPU")
    kinds = {"grad": scaled(scales, 4), "grad_output": scaled(scales, 4), "grad_hy": None, "x": plain(4), "weights": [plain(4), plain(4)]}
    op = getattr(torch.ops.scaled_derivatives, name)
    assert scales.of(op(*(kinds[each.name] for each in op.default._schema.arguments))) == SCALE


def test_a_fused_op_on_a_tensor_passes_a_scale_on(scales: LossScales) -> None:
    """As the derivative of CUDA's rms norm. A fused step of an optimizer takes lists, and makes no scaled results."""
    library = torch.library.Library("scaled_fused", "FRAGMENT")
    library.define("_fused_norm_backward(Tensor grad_out, Tensor input) -> Tensor")
    library.impl("_fused_norm_backward", lambda gradient, x: gradient + x, "CPU")
    assert scales.of(torch.ops.scaled_fused._fused_norm_backward(scaled(scales, 4), plain(4))) == SCALE
