"""Whose rounding is amplified: differences of kin, sums that swallow, subnormal numbers, and gradients, which nobody wrote.

Scenarios in torch; records made by hand where a limit's edge is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, given, value
from scenario import finds, passes, watched
from torch import nn

import precheck
from precheck import formats
from precheck.analysis.propagation import causes
from precheck.judge.watched_runs import RunJudge
from precheck.observe.shadow.operations import Observation, Operation

U = formats.of_dtype("bfloat16").unit_roundoff
ROUNDED = 0.42 * U
LOST = {"drift": 100 * ROUNDED, "alive": True}


def stored(graph: Graph, name: str = "mul.Tensor", **makes: Any) -> Any:
    """Something computed in bfloat16, off by one rounding."""
    return graph.op(name, given(), makes={"drift": ROUNDED} | makes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_wide_function_amplifies_was_rounded_before_it(dtype: str) -> None:
    """`its rounding` was said of an exponential in float32, which rounds nothing. A function in a low format may be what errs."""
    graph = Graph()
    low = stored(graph)
    wide = graph.op("_to_copy.default", low, makes={"dtype": "float32", "drift": ROUNDED})
    grown = graph.op("exp.default", wide, makes={"dtype": dtype, "drift": 8 * ROUNDED})
    assert causes.error_source(grown) is (low.maker if dtype == "float32" else grown.maker)


TIMES = torch.linspace(100.0, 101.0, 64)
NEAR_ONE = torch.linspace(0.99, 1.01, 64)


def steps_of_a_table() -> torch.Tensor:
    table = TIMES.square().bfloat16()  # fault
    return table[1:] - table[:-1]


def test_parts_of_one_tensor_differ_by_what_it_could_hold() -> None:
    finds(steps_of_a_table, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")


def slopes_of_stored_depths() -> torch.Tensor:
    depth = torch.linspace(3.0, 3.02, 64).half()  # fault
    wide = depth.float()
    return wide[1:] - wide[:-1]


def slopes_of_steep_depths() -> torch.Tensor:
    depth = torch.linspace(3.0, 9.0, 64).half()
    wide = depth.float()
    return wide[1:] - wide[:-1]


def test_data_whose_cast_left_nothing_of_what_is_read_in_them_were_cast_too_soon() -> None:
    """Differences in float32 are exact for data that are kept low, if the data have their digits."""
    finds(slopes_of_stored_depths, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")
    passes(slopes_of_steep_depths)


def fraction() -> torch.Tensor:
    phase = TIMES.bfloat16()  # fault
    return phase - phase.floor()


def excess() -> torch.Tensor:
    phase = TIMES.bfloat16()  # fault
    return phase - phase.clamp(max=100.5)


@pytest.mark.parametrize("program", [fraction, excess], ids=lambda program: program.__name__)
def test_a_number_less_what_was_cut_from_it_shows_how_it_was_stored(program: Callable[[], Any]) -> None:
    finds(program, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")


def test_a_number_less_a_cast_of_it_shows_how_it_was_stored() -> None:
    """By hand: `phase - phase.long()` itself is told as a cancellation."""
    graph = Graph()
    phase = stored(graph)
    graph.op("sub.Tensor", phase, graph.op("_to_copy.default", phase), makes=LOST)
    assert graph.rules() == [("amplified-rounding", 1)]


def less_its_sigmoid() -> torch.Tensor:
    x = torch.linspace(0.658, 0.66, 64).bfloat16() * 1.0001
    return x - x.sigmoid()  # fault


def less_its_mean() -> torch.Tensor:
    x = TIMES.bfloat16() * 1.01
    return x - x.mean(0, keepdim=True)  # fault


def less_its_square() -> torch.Tensor:
    x = NEAR_ONE.bfloat16() * 1.0001
    return x - x**2  # fault


@pytest.mark.parametrize("program", [less_its_sigmoid, less_its_mean, less_its_square], ids=lambda program: program.__name__)
def test_a_number_less_a_function_of_it_is_a_cancellation(program: Callable[[], Any]) -> None:
    finds(program, "cancellation")


def of_two_tensors() -> torch.Tensor:
    one, other = NEAR_ONE.bfloat16() * 1.5, (NEAR_ONE + 1e-3).bfloat16() * 1.5
    return one - other  # fault


def test_terms_of_different_origin_are_a_cancellation() -> None:
    finds(of_two_tensors, "cancellation")


EDGE = 8 * ROUNDED / causes.SWALLOWED


@pytest.mark.parametrize(("small", "rule"), [(EDGE, "absorption"), (1.01 * EDGE, "amplified-rounding")])
def test_a_sum_that_swallows_a_quarter_of_what_it_adds_is_absorption(small: float, rule: str) -> None:
    """The sum is of norm 8, its error that times one rounding."""
    graph = Graph()
    start = given()
    moved = graph.op("add.Tensor", graph.op("add.Tensor", start, given()), given(norm=small), makes={"drift": ROUNDED})
    graph.op("sub.Tensor", moved, start, makes=LOST)
    assert graph.rules() == [(rule, 2)]


def large_and_small() -> torch.Tensor:
    small = (torch.linspace(0.1, 0.11, 64).bfloat16().square() * 1.01).square()
    large = TIMES.bfloat16() * 10  # fault
    return (large.float() + small.float()).sin()


def test_in_a_sum_the_larger_term_brings_the_error() -> None:
    """A small term that is further off in proportion is nearer in absolute terms."""
    finds(large_and_small, "amplified-rounding")


def angles() -> torch.Tensor:
    """Of directions that are nearly alike, by the cosine of what is between them."""
    one = torch.linspace(0.6, 1.4, 64).bfloat16() * 1.01
    other = one + 0.004
    cosine = one.sin() * other.sin() + one.cos() * other.cos()  # fault
    return cosine.float().clamp(max=1).acos()


def test_a_sum_that_is_nearer_than_its_terms_has_an_error_of_its_own() -> None:
    """The terms are off by what the angle was, and by opposite amounts. The sum is off by its own rounding."""
    finds(angles, "amplified-rounding", says="amplified")


def squares_of_small_numbers() -> torch.Tensor:
    small = torch.linspace(1e-4, 1.1e-3, 64).half()
    return small**2  # fault


def test_what_falls_among_subnormal_numbers_is_underflow() -> None:
    """The op's own rounding, and no input's: its results keep a few bits each."""
    finds(squares_of_small_numbers, "underflow", says="subnormal or zero here, where float16 has few bits")


SLOPES = torch.linspace(1.0, 1.01, 64)


def difference_of_gradients() -> torch.Tensor:
    weight = nn.Parameter(torch.ones(64))
    (gradient,) = torch.autograd.grad((weight.bfloat16() * SLOPES.bfloat16()).float().sum(), weight)
    return gradient - (SLOPES + 5e-4)


def difference_of_products() -> torch.Tensor:
    product = torch.ones(64).bfloat16() * SLOPES.bfloat16()  # fault
    return product.float() - (SLOPES + 5e-4)


def low_difference_of_gradients() -> torch.Tensor:
    weight, other = nn.Parameter(torch.ones(64).bfloat16()), nn.Parameter(torch.ones(64).bfloat16())
    (one,) = torch.autograd.grad((weight * SLOPES.bfloat16()).float().sum(), weight)
    (two,) = torch.autograd.grad((other * (SLOPES + 1e-3).bfloat16()).float().sum(), other)
    return one - two  # fault


def test_a_wide_difference_of_gradients_is_as_autograd_left_it() -> None:
    passes(difference_of_gradients)
    finds(difference_of_products, "amplified-rounding")
    finds(low_difference_of_gradients, "cancellation")


def test_a_long_chain_asked_about_at_every_step_is_walked_once() -> None:
    """A phase that runs on, and a sine of it at every step: fifty million ops would be looked at otherwise, by a quadratic of 10000. By hand, since
    torch would take minutes."""
    graph = Graph()
    phase = stored(graph)
    for _ in range(10_000):
        phase = graph.op("add.Tensor", phase, given(), makes={"drift": 8 * ROUNDED})
        graph.op("sin.default", phase, makes={"drift": 0.9, "dead": 0.9, "alive": True})
    (finding,) = graph.found()
    assert finding.rule == "amplified-rounding"


def test_the_smallest_of_many_numbers_has_no_error_of_its_own() -> None:
    """It changes by no more than the number that changes most. Its relative error is larger, since it is small."""
    masses = torch.linspace(60, 170, 42)[torch.arange(42) * 17 % 42].view(3, 14)
    peaks = masses.cumsum(-1) + 1.0 + 0.01 * torch.linspace(-1, 1, 42).view(3, 14)

    def explained() -> torch.Tensor:
        fragments = (masses.bfloat16().cumsum(-1) + 1.0).float()
        gap = (peaks[:, None] - fragments[..., None]).abs().amin(-1)
        return (-0.5 * (gap / 0.02).square()).exp()

    (error,) = watched(explained).errors
    assert error.message.startswith("aten.add.Tensor"), error.message


def test_each_gradient_of_an_op_on_lists_has_the_error_of_its_own_place() -> None:
    """The scaler divides all gradients in one op. What the second is off by comes of the second's line."""
    graph = Graph()
    first, second = stored(graph), graph.op("exp.default", given(), makes={"drift": 30 * ROUNDED})
    maker = Operation(3, "_amp_foreach_non_finite_check_and_unscale_.default", "data", "", "model.py:3", 1, inputs=(first, second, given(), given()))
    made = maker.outputs = (value(maker, "float32", drift=ROUNDED), value(maker, "float32", drift=30 * ROUNDED))
    assert [causes.computed_from(maker, each)[0] for each in made] == [first, second]
    assert [causes.error_source(each) for each in made] == [first.maker, second.maker]


def test_a_gradient_keeps_its_error_when_the_scaler_divides_it() -> None:
    """Before, the optimizer's first op was taken for what made the error."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimizer, scaler = torch.optim.AdamW([weight], lr=1e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen: list[Observation] = []
    judge = RunJudge.candidates
    with pytest.MonkeyPatch.context() as patch, precheck.watch():
        patch.setattr(RunJudge, "candidates", lambda self, observation: (seen.append(observation), judge(self, observation))[1])
        with torch.autocast("cpu", torch.float16):
            loss = (weight @ weight.exp()).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    unscaled = next((each for each in seen[-1].operations if "unscale" in each.name), None)
    assert unscaled is not None
    assert 0 < unscaled.inputs[0].drift == unscaled.outputs[0].drift
    assert unscaled.outputs[0].norm == pytest.approx(unscaled.inputs[0].norm / 1024)
