"""Inf, NaN and zeros made by hand: the edges of limits, and what a run cannot easily be made to do. Scenarios are in test_infinity."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, above, below, given

from precheck.analysis import nonfinite, zeros

LARGEST = 65504.0
TINIEST = 2.0**-24  # float16's smallest subnormal; half of it and less rounds to zero
NORMAL = 2.0**-14  # float16's smallest normal
INF: dict[str, Any] = {"dtype": "float16", "nonfinite": 1, "beyond": 1e5}
NAN: dict[str, Any] = {"dtype": "float16", "nonfinite": 1, "nans": 1, "beyond": 3.0}
ZERO: dict[str, Any] = {"dtype": "float16", "zeros": 1, "largest_zeroed": TINIEST / 4}


def overflowed(name: str = "mul.Tensor", **facts: Any) -> tuple[Graph, Any]:
    graph = Graph()
    return graph, graph.op(name, given("float16"), makes=INF, **facts)


@pytest.mark.parametrize(("drift", "accused"), [(nonfinite.WRONG, False), (above(nonfinite.WRONG), True)])
def test_a_finite_consumer_heals_it_if_it_is_right_to_a_quarter(drift: float, accused: bool) -> None:
    graph, infinite = overflowed()
    graph.op("clamp.default", infinite, makes={"dtype": "float16", "drift": drift})
    assert (("overflow", 1) in graph.rules()) is accused


def test_a_backward_pass_that_it_reaches_is_harmed() -> None:
    graph, infinite = overflowed()
    graph.op("clamp.default", infinite, makes={"dtype": "float16"})
    graph.op("mul.Tensor", infinite, makes=INF, phase="backward", derived=True, scale=2.0**16)
    assert ("overflow", 1) in graph.rules()


def test_one_over_infinity_harms_where_the_reference_has_a_number() -> None:
    graph, infinite = overflowed()
    graph.op("reciprocal.default", infinite, makes={"dtype": "float16", "zeros": 1, "largest_zeroed": below(TINIEST / 2)})
    assert graph.rules() == []
    graph, infinite = overflowed()
    graph.op("reciprocal.default", infinite, makes={"dtype": "float16", "zeros": 1, "largest_zeroed": above(TINIEST / 2)})
    assert ("overflow", 1) in graph.rules()


def handed_on(graph: Graph, value: Any, name: str = "_to_copy.default") -> None:
    """A copy in another dtype, which is the same value."""
    graph.op(name, value)
    graph.last.outputs = (value,)


@pytest.mark.parametrize(("distinct_overflows", "negative", "alive", "accused"), [
    (nonfinite.FILLS, True, True, False), (nonfinite.FILLS + 1, True, True, True), (nonfinite.FILLS + 1, False, False, False),
    (1, False, True, True), (1, False, False, False), (0, False, True, False),
])  # fmt: skip
def test_more_numbers_than_masks_have_or_one_above_zero_are_no_mask(distinct_overflows: int, negative: bool, alive: bool, accused: bool) -> None:
    """Where only samples are looked at, nothing may be known of the numbers."""
    graph = Graph()
    made = {"distinct_overflows": distinct_overflows, "negative": negative, "alive": alive}
    cast = graph.op("_to_copy.default", given("float32"), makes=INF | made)
    handed_on(graph, cast)
    assert (graph.rules() == [("overflow", 1)]) is accused


@pytest.mark.parametrize(("facts", "accused"), [
    ({"distinct_overflows": 1, "negative": True}, False),
    ({"distinct_overflows": 1, "negative": False}, True),
    ({"distinct_overflows": nonfinite.FILLS + 1, "negative": True}, True),
])  # fmt: skip
def test_scores_under_a_mask_may_be_handed_out(facts: dict[str, Any], accused: bool) -> None:
    graph = Graph()
    mask = graph.op("_to_copy.default", given("float32"), makes=INF | facts)
    handed_on(graph, graph.op("add.Tensor", given("float16"), mask, makes=INF))
    assert (graph.rules() == [("overflow", 1)]) is accused


def test_a_gradient_is_no_mask() -> None:
    graph = Graph()
    handed_on(graph, graph.op("_to_copy.default", given("float32"), makes=INF | {"distinct_overflows": 1}, phase="backward", derived=True))
    assert graph.rules() == [("overflow", 1)]


CONSTANTS = [("masked_fill.Scalar", False), ("full.default", False), ("_to_copy.default", False), ("exp.default", True)]


@pytest.mark.parametrize(("name", "accused"), CONSTANTS)
def test_a_constant_that_nobody_computes_with_harms_nobody(name: str, accused: bool) -> None:
    graph, _ = overflowed(name)
    assert (graph.rules() == [("overflow", 1)]) is accused


@pytest.mark.parametrize(("beyond", "accused"), [(LARGEST * 1024, False), (above(LARGEST * 1024), True)])
def test_a_loss_scale_excuses_what_would_fit_without_it(beyond: float, accused: bool) -> None:
    graph = Graph()
    graph.op("mm.default", given("float16"), makes=INF | {"beyond": beyond}, phase="backward", derived=True, scale=1024.0)
    assert (graph.rules() == [("overflow", 1)]) is accused


@pytest.mark.parametrize(("phase", "scale"), [("forward", 1024.0), ("backward", 1.0)])
def test_no_scale_and_no_forward_pass_is_excused(phase: str, scale: float) -> None:
    graph, _ = overflowed("mm.default", phase=phase, scale=scale)
    assert graph.rules() == [("overflow", 1)]


@pytest.mark.parametrize(("starved", "rule"), [(below(NORMAL), "underflow"), (NORMAL, "overflow")])
def test_a_divisor_below_the_smallest_normal_is_to_blame_for_the_quotient(starved: float, rule: str) -> None:
    graph, _ = overflowed("div.Tensor", starved=starved)
    assert graph.rules() == [(rule, 1)]


@pytest.mark.parametrize(("guard", "rule"), [(TINIEST / 2, "vanished-constant"), (above(TINIEST / 2), "underflow")])
def test_a_zero_at_a_pole_is_traced_to_its_guard_or_to_the_flush(guard: float, rule: str) -> None:
    graph = Graph()
    zero = graph.op("add.Tensor", given("float16"), makes=ZERO, scalars=(1.0, guard) if rule != "underflow" else (guard,))
    graph.op("div.Tensor", given("float16"), graph.op("neg.default", zero, makes=ZERO), makes=INF)
    assert graph.rules() == [(rule, 1)]


def test_a_zero_times_a_larger_than_largest_is_still_an_overflow() -> None:
    """A zero among the inputs explains nothing at an op that has no pole."""
    graph = Graph()
    zero = graph.op("exp.default", given("float16"), makes=ZERO)
    graph.op("mul.Tensor", zero, given("float16"), makes=INF)
    assert graph.rules() == [("overflow", 2)]


@pytest.mark.parametrize(("between", "rules"), [
    ((), [("vanished-constant", 1)]),
    (("neg.default",), [("vanished-constant", 1)]),
    (("neg.default", "rsub.Scalar"), [("vanished-constant", 1)]),
    (("rsub.Scalar", "rsub.Scalar"), [("cancellation", 3)]),
    (("sigmoid.default",), [("amplified-rounding", 2)]),
])  # fmt: skip
def test_a_bound_that_rounds_onto_the_pole_it_guards(between: tuple[str, ...], rules: list[tuple[str, int]]) -> None:
    """From the pole back through moves and one sum at most; else the last op that doubled the drift is to blame."""
    graph = Graph()
    drift = 1e-3
    held = graph.op("clamp.default", given("float16"), makes={"dtype": "float16", "drift": drift})
    for name in between:
        drift *= 4
        held = graph.op(name, held, makes={"dtype": "float16", "drift": drift})
    graph.op("log.default", held, makes={"dtype": "float16", "nonfinite": 1, "beyond": 13.0})
    assert graph.rules() == rules


BOUND = [(0.9999, [("vanished-constant", 1)]), (0.999, [("cancellation", 2)]), (0.75, [("cancellation", 2)])]


@pytest.mark.parametrize(("bound", "rules"), BOUND)
def test_a_difference_is_zero_for_a_bound_that_is_no_less_than_what_it_is_taken_from(bound: float, rules: list[tuple[str, int]]) -> None:
    """log(1 - p.clamp(max=0.9999)): float16 has 0.9995 next to 1. Where it holds the bound, the difference lost the digits itself."""
    graph = Graph()
    p = graph.op("clamp.default", given("float16"), makes={"dtype": "float16", "drift": 1e-4}, scalars=(1e-4, bound))
    gap = graph.op("rsub.Scalar", p, makes={"dtype": "float16", "drift": 1e-4, "zeros": 1, "largest_zeroed": 1e-4})
    graph.op("log.default", gap, makes=INF | {"beyond": 9.2, "alive": True})
    assert graph.rules() == rules
    assert ("0.9999 is 1 in float16" in graph.found()[0].message) is (bound == 0.9999)


def test_a_difference_of_two_tensors_is_not_the_bounds_doing() -> None:
    """Where p is 0.5 and q nearly so, it makes no odds that one of them was kept off 1."""
    graph = Graph()
    p = graph.op("clamp.default", given("float16"), makes={"dtype": "float16", "drift": 1e-4}, scalars=(1e-4, 0.9999))
    gap = graph.op("sub.Tensor", p, given("float16"), makes={"dtype": "float16", "drift": 1e-4, "zeros": 1, "largest_zeroed": 1e-4})
    graph.op("log.default", gap, makes=INF | {"beyond": 9.2, "alive": True})
    assert graph.rules() == [("cancellation", 2)]


def test_of_nothing_over_nothing_the_guard_is_to_blame_unless_all_was_lost() -> None:
    """Adam's moments vanish, and eps with them; but a numerator that is gone as a whole needs no guard to be wrong."""
    for zeroed, rules in ((0.1, [("vanished-constant", 2)]), (0.9, [("underflow", 1)])):
        graph = Graph()
        zeros = {"dtype": "float16", "zeros": 32, "largest_zeroed": TINIEST / 4}
        moment = graph.op("lerp_.Scalar", given("float16"), makes=zeros | {"zeroed": zeroed})
        guard = graph.op("add_.Tensor", given("float16"), makes=zeros, scalars=(1e-8,))
        graph.op("addcdiv_.default", given("float16"), moment, guard, makes=INF | {"nans": 1, "beyond": 1.0, "alive": True})
        assert [rule for rule in graph.rules() if rule[1] < 3][:1] == rules


def test_nan_from_what_the_reference_has_too_is_called_nan() -> None:
    graph = Graph()
    graph.op("prod.default", given("float16"), makes=NAN)
    assert graph.rules() == [("nan", 1)]


FLOOD: dict[str, Any] = {"dtype": "float16", "zeros": 40, "largest_zeroed": TINIEST / 4, "drift": 0.9, "norm": 1e-6}


@pytest.mark.parametrize(("zeroed", "accused"), [(below(zeros.LOST), False), (zeros.LOST, True)])
def test_a_tensor_half_of_which_is_flushed_is_lost_if_the_user_keeps_it(zeroed: float, accused: bool) -> None:
    graph = Graph()
    graph.op("mul.Tensor", given("float16", norm=1e-3), makes=FLOOD | {"zeroed": zeroed, "alive": True})
    assert (graph.rules() == [("underflow", 1)]) is accused


@pytest.mark.parametrize(("drift", "accused"), [(zeros.LOST, False), (above(zeros.LOST), True)])
def test_what_is_flushed_harms_by_what_it_ends_up_in(drift: float, accused: bool) -> None:
    graph = Graph()
    flushed = graph.op("mul.Tensor", given("float16", norm=1e-3), makes=FLOOD | {"zeroed": 1.0})
    product = graph.op("mul.Tensor", flushed, given("float16"), makes=FLOOD | {"zeroed": 1.0})
    graph.op("add.Tensor", product, given("float16"), makes={"dtype": "float16", "drift": drift, "zeros": 0})
    assert (("underflow", 1) in graph.rules()) is accused


def test_a_weight_that_its_cast_makes_zero_is_lost_like_any_other_tensor() -> None:
    graph = Graph()
    graph.op("_to_copy.default", given("float32", norm=1e-6), makes=FLOOD | {"zeroed": 1.0, "alive": True}, parameter=1)
    assert graph.rules() == [("underflow", 1)]


def starved(zeroed: float, scale: float = 1.0, norm: float = 1e-9, dtype: str = "float16") -> Graph:
    graph = Graph()
    lost = {"dtype": dtype, "zeros": 60, "zeroed": zeroed, "largest_zeroed": TINIEST / 4, "norm": norm, "drift": 0.9}
    made = graph.op("mm.default", given(dtype, norm=1e-6), given(dtype, norm=1e-2), makes=lost, phase="backward", derived=True, scale=scale)
    graph.observation.gradients[7] = ("head.weight", made, scale)
    return graph


@pytest.mark.parametrize(("zeroed", "accused"), [(zeros.LOST, False), (above(zeros.LOST), True)])
def test_a_gradient_more_than_half_of_which_is_flushed_is_starved(zeroed: float, accused: bool) -> None:
    assert (starved(zeroed).rules() == [("gradient-underflow", 1)]) is accused


@pytest.mark.parametrize(("scale", "severity"), [(1.0, "error"), (1024.0, "warning")])
def test_under_a_loss_scale_a_starved_gradient_is_a_warning(scale: float, severity: str) -> None:
    (finding,) = starved(1.0, scale).found()
    assert finding.severity == severity
    assert finding.phase == "backward"
    assert "head.weight" in finding.message


def test_a_gradient_that_float32_does_not_know_either_is_let_be() -> None:
    """A key's bias: products of 1e-8 that cancel to 1e-17."""
    assert starved(1.0, norm=1e-8 * below(2.0**-17)).rules() == []
    assert starved(1.0, norm=1e-8 * above(2.0**-17)).rules() == [("gradient-underflow", 1)]


@pytest.mark.parametrize(("name", "rules"), [("div.Tensor", ["underflow"]), ("convolution_backward.default", ["nan"]), ("mul.Tensor", ["nan"])])
def test_a_product_of_finite_numbers_makes_no_nan_of_a_zero(name: str, rules: list[str]) -> None:
    """A kernel that does is wrong; a quotient of zeros is none."""
    graph = Graph()
    zero = graph.op("mul.Tensor", given("float16"), makes=ZERO | {"zeros": 64, "zeroed": 1.0})
    graph.op(name, given("float16"), zero, makes=NAN | {"alive": True})
    assert [finding.rule for finding in graph.found()] == rules


@pytest.mark.parametrize(("reader", "accused"), [("sum.default", True), ("nan_to_num.default", False), ("where.self", False), ("ne.Tensor", False)])
def test_a_mask_that_is_multiplied_by_infinity(reader: str, accused: bool) -> None:
    graph = Graph()
    product = graph.op("mul.Tensor", given("float16"), makes={"dtype": "float16"}, unmasked=3)
    graph.op(reader, product, makes={"dtype": "float16"})
    found = graph.found()
    assert [(finding.rule, finding.severity, finding.source) for finding in found] == [("nan", "error", "model.py:1")] * accused
    assert all("multiplied by 3 Inf or NaN" in finding.message and "torch.where" in finding.message for finding in found)


def test_infinity_of_the_run_alone_is_told_where_it_came_from() -> None:
    graph, infinite = overflowed()
    graph.op("sum.default", graph.op("mul.Tensor", infinite, makes=NAN, unmasked=1), makes=NAN)
    assert graph.rules() == [("overflow", 1)]
