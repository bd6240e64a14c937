"""Whose rounding is amplified: differences of kin, sums that swallow, subnormal numbers, and gradients, which nobody wrote."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, given

from precheck import formats
from precheck.analysis import causes

U = formats.of_dtype("bfloat16").unit_roundoff
ROUNDED = 0.42 * U
LOST = {"drift": 100 * ROUNDED, "alive": True}


def stored(graph: Graph, name: str = "mul.Tensor", **makes: Any) -> Any:
    """Something computed in bfloat16, off by one rounding."""
    return graph.op(name, given(), makes={"drift": ROUNDED} | makes)


def test_parts_of_one_tensor_differ_by_what_it_could_hold() -> None:
    graph = Graph()
    table = stored(graph)
    graph.op("sub.Tensor", table, table, makes=LOST)
    assert graph.rules() == [("amplified-rounding", 1)]


@pytest.mark.parametrize("between", ["floor.default", "_to_copy.default", "clamp.default"])
def test_a_number_less_what_was_cut_from_it_shows_how_it_was_stored(between: str) -> None:
    graph = Graph()
    phase = stored(graph)
    whole = graph.op(between, phase)
    graph.op("sub.Tensor", phase, whole, makes=LOST)
    assert graph.rules() == [("amplified-rounding", 1)]


@pytest.mark.parametrize("between", ["sigmoid.default", "mean.dim", "pow.Tensor_Scalar"])
def test_a_number_less_a_function_of_it_is_a_cancellation(between: str) -> None:
    graph = Graph()
    x = stored(graph)
    graph.op("sub.Tensor", x, graph.op(between, x, makes={"drift": ROUNDED}), makes=LOST)
    assert graph.rules() == [("cancellation", 3)]


def test_terms_of_different_origin_are_a_cancellation() -> None:
    graph = Graph()
    graph.op("sub.Tensor", stored(graph), stored(graph), makes=LOST)
    assert graph.rules() == [("cancellation", 3)]


EDGE = 8 * ROUNDED / causes.SWALLOWED


@pytest.mark.parametrize(("small", "rule"), [(EDGE, "absorption"), (1.01 * EDGE, "amplified-rounding")])
def test_a_sum_that_swallows_a_quarter_of_what_it_adds_is_absorption(small: float, rule: str) -> None:
    """The sum is of norm 8, its error that times one rounding."""
    graph = Graph()
    start = given()
    moved = graph.op("add.Tensor", graph.op("add.Tensor", start, given()), given(norm=small), makes={"drift": ROUNDED})
    graph.op("sub.Tensor", moved, start, makes=LOST)
    assert graph.rules() == [(rule, 2)]


def test_in_a_sum_the_larger_term_brings_the_error() -> None:
    """A small term that is further off in proportion is nearer in absolute terms."""
    graph = Graph()
    large, small = stored(graph), stored(graph, drift=4 * ROUNDED, norm=0.01)
    total = graph.op("add.Tensor", large, small, makes={"drift": 1.01 * ROUNDED})
    graph.op("sin.default", total, makes={"drift": 0.9, "dead": 0.9, "alive": True})
    assert graph.rules() == [("amplified-rounding", 1)]


def test_what_falls_among_subnormal_numbers_is_underflow() -> None:
    """Of 64 numbers of 1e-7 each half keeps one bit: the op's own rounding, and no input's."""
    graph = Graph()
    small = graph.op("_to_copy.default", given("float32"), makes={"dtype": "float16", "drift": 1e-4})
    graph.op("pow.Tensor_Scalar", small, makes={"dtype": "float16", "norm": 8e-7, "drift": 0.15, "dead": 0.05, "alive": True})
    assert graph.rules() == [("underflow", 2)]


@pytest.mark.parametrize(
    ("derived", "wide", "rules"),
    [(True, True, []), (False, True, [("amplified-rounding", 1)]), (True, False, [("cancellation", 2)])],
)
def test_a_wide_difference_of_gradients_is_as_autograd_left_it(derived: bool, wide: bool, rules: list[Any]) -> None:
    graph = Graph()
    gradient = graph.op("mm.default", given(), makes={"drift": ROUNDED}, phase="backward", derived=derived)
    graph.op("sub.Tensor", gradient, given(), makes=LOST | ({"dtype": "float32", "roundoff": U} if wide else {}))
    assert graph.rules() == rules


def test_a_long_chain_asked_about_at_every_step_is_walked_once() -> None:
    """A phase that runs on, and a sine of it at every step: fifty million ops would be looked at otherwise, by a quadratic of 10000."""
    graph = Graph()
    phase = stored(graph)
    for _ in range(10_000):
        phase = graph.op("add.Tensor", phase, given(), makes={"drift": 8 * ROUNDED})
        graph.op("sin.default", phase, makes={"drift": 0.9, "dead": 0.9, "alive": True})
    (finding,) = graph.found()
    assert finding.rule == "amplified-rounding"
