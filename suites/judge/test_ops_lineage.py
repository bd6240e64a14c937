"""Where a fault came from: origins of drift and of zeros, what float32 determines, and how findings are told."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, above, below, given, value

from precheck.analysis.provenance import Origins, descendants, determined, zero_origin
from precheck.observe.shadow.operations import Operation

TINIEST = 2.0**-24
ZERO: dict[str, Any] = {"dtype": "float16", "zeros": 1, "largest_zeroed": TINIEST / 4}


def traced(graph: Graph) -> Origins:
    origins = Origins()
    for operation in graph.observation.operations:
        origins.trace(operation)
    return origins


@pytest.mark.parametrize(("drift", "line"), [(2e-3, 1), (above(2e-3), 2)])
def test_the_origin_is_the_last_op_that_more_than_doubled_the_drift(drift: float, line: int) -> None:
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    made = graph.op("mul.Tensor", given(), cast, makes={"drift": drift})
    origin = traced(graph).of(made)
    assert origin is not None
    assert origin.number == line


def test_the_origin_is_followed_along_the_input_that_is_furthest_off() -> None:
    graph = Graph()
    less = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-4})
    more = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    made = graph.op("add.Tensor", less, more, makes={"drift": 1e-3})
    assert traced(graph).of(made) is more.maker


def test_what_was_given_has_no_origin() -> None:
    assert Origins().of(given()) is None
    assert Origins().of(None) is None


def test_a_copy_keeps_the_origin_of_what_it_copies() -> None:
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    graph.op("_to_copy.default", cast)
    graph.last.outputs = (cast,)
    assert traced(graph).of(cast) is cast.maker


def test_zeros_are_traced_back_to_the_op_that_flushed_them() -> None:
    graph = Graph()
    flushed = graph.op("mul.Tensor", given("float16"), makes=ZERO)
    moved = graph.op("mean.dim", graph.op("neg.default", flushed, makes=ZERO), makes=ZERO)
    assert zero_origin(moved) == ("underflow", flushed.maker)


@pytest.mark.parametrize(("name", "lost", "rule"), [
    ("sub.Tensor", above(TINIEST / 2), "cancellation"),
    ("sub.Tensor", TINIEST / 2, "underflow"),
    ("log.default", above(TINIEST / 2), "amplified-rounding"),
    ("log.default", TINIEST / 2, "underflow"),
    ("mul.Tensor", 1.0, "underflow"),
])  # fmt: skip
def test_a_zero_where_the_format_has_a_number_was_not_flushed(name: str, lost: float, rule: str) -> None:
    graph = Graph()
    zero = graph.op(name, given("float16"), makes=ZERO | {"largest_zeroed": lost})
    assert zero_origin(zero) == (rule, zero.maker)


@pytest.mark.parametrize(("facts", "rule"), [
    ({"phase": "backward", "scale": 1.0}, "gradient-underflow"),
    ({"phase": "backward", "scale": 2.0}, "underflow"),
    ({"phase": "forward"}, "underflow"),
])  # fmt: skip
def test_a_zero_of_an_unscaled_backward_pass_wants_a_scaler(facts: dict[str, Any], rule: str) -> None:
    graph = Graph()
    zero = graph.op("mm.default", given("float16"), makes=ZERO, **facts)
    assert zero_origin(zero)[0] == rule


@pytest.mark.parametrize(("name", "scalars", "rule"), [
    ("add.Tensor", (TINIEST / 2,), "vanished-constant"),
    ("clamp_min.default", (TINIEST / 2,), "vanished-constant"),
    ("add.Tensor", (above(TINIEST / 2),), "underflow"),
    ("add.Tensor", (0.0,), "underflow"),
    ("mul.Tensor", (TINIEST / 2,), "underflow"),
])  # fmt: skip
def test_a_guard_on_the_way_that_rounds_to_zero_is_what_vanished(name: str, scalars: tuple[float, ...], rule: str) -> None:
    """The walk stops at the first guard that guards nothing, though zeros come from further back."""
    graph = Graph()
    flushed = graph.op("exp.default", given("float16"), makes=ZERO)
    guarded = graph.op(name, flushed, makes=ZERO, scalars=scalars)
    handed = graph.op("neg.default", guarded, makes=ZERO)
    assert zero_origin(handed) == (rule, guarded.maker if rule == "vanished-constant" else flushed.maker)


def test_zeros_that_were_given_are_the_users_own() -> None:
    with pytest.raises(ValueError, match="given to the watched block"):
        zero_origin(given("float16", zeros=3))


SIZES = [("sum.dim_IntList", (3.0,), 3.0), ("add.Tensor", (3.0, 5.0), 5.0), ("mm.default", (3.0, 5.0), 15.0)]


@pytest.mark.parametrize(("name", "norms", "scale"), SIZES)
def test_float32_determines_what_is_not_smaller_than_its_own_noise(name: str, norms: tuple[float, ...], scale: float) -> None:
    """2^-17 of the largest term, or of the product of a matrix product's factors."""
    operation = Operation(1, name, "backward", "", "", 1, tuple(given("float32", norm=norm) for norm in norms))
    assert determined(operation, value(operation, norm=above(scale * 2.0**-17)))
    assert not determined(operation, value(operation, norm=below(scale * 2.0**-17)))


def test_what_is_zero_or_made_of_nothing_is_determined() -> None:
    operation = Operation(1, "mm.default", "backward", "", "", 1, (given("float32", norm=0.0),))
    assert determined(operation, value(operation, norm=1.0))
    assert determined(Operation(1, "sum.default", "backward", "", "", 1, (given(),)), value(norm=0.0))


@pytest.mark.parametrize("name", ["mul.Tensor", "div.Tensor"])
def test_a_factor_makes_small_and_cancels_nothing(name: str) -> None:
    """What is 1e-8 of its operand is known as well as that; of a sum that cancelled no factor makes more than its noise."""
    graph = Graph()
    drifting = {"dtype": "float32", "drift": 0.1}
    known = graph.op(name, graph.op("sum.dim_IntList", given(norm=1.0), makes=drifting | {"norm": 1.0}), makes={"norm": 1e-8})
    noise = graph.op(name, graph.op("sum.dim_IntList", given(norm=1.0), makes=drifting | {"norm": 1e-6}), makes={"norm": 1.0})
    assert determined(graph.observation.operations[1], known)
    assert not determined(graph.observation.operations[3], noise)


def test_descendants_are_what_a_value_went_into() -> None:
    graph = Graph()
    root = graph.op("exp.default", given())
    other = graph.op("exp.default", given())
    child = graph.op("mul.Tensor", root, other)
    grandchild = graph.op("neg.default", child)
    assert descendants(graph.observation, [root]) == {root, child, grandchild}
    assert descendants(graph.observation, []) == set()


BROKEN: dict[str, Any] = {"drift": 0.9, "dead": 0.9, "alive": True}


def test_a_rule_speaks_once_for_each_line_and_phase() -> None:
    graph = Graph()
    for _ in range(3):
        graph.op("sin.default", given(), makes=BROKEN, source="model.py:4")
    graph.op("sin.default", given(), makes=BROKEN, source="model.py:5")
    graph.op("sin.default", given(), makes=BROKEN, source="model.py:4", phase="data")
    told = [(finding.source, finding.phase) for finding in graph.found()]
    assert told == [("model.py:4", "forward"), ("model.py:5", "forward"), ("model.py:4", "data")]


def test_findings_come_in_the_order_of_their_causes() -> None:
    """Not in the order of the rules: the earliest is the first that a reader meets."""
    graph = Graph()
    graph.op("sin.default", given(), makes=BROKEN)
    graph.op("exp.default", given("float16"), makes={"dtype": "float16", "nonfinite": 1, "beyond": 1e6})
    graph.op("sub.Tensor", given(), makes=BROKEN)
    assert graph.rules() == [("amplified-rounding", 1), ("overflow", 2), ("cancellation", 3)]


def test_a_finding_carries_what_the_op_knows() -> None:
    graph = Graph()
    graph.op("sin.default", given(), makes=BROKEN, source="models/gpt.py:88", module="layers.0", step=3, phase="data")
    (finding,) = graph.found()
    assert (finding.op, finding.source, finding.phase) == ("aten.sin.default", "models/gpt.py:88", "data")
    assert (finding.module, finding.step) == ("layers.0", 3)
    assert finding.message.startswith("aten.sin.default at models/gpt.py:88: ")


def test_a_healthy_run_has_no_findings() -> None:
    graph = Graph()
    made = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    for name in ("mm.default", "gelu.default", "add.Tensor", "native_layer_norm.default", "_softmax.default"):
        made = graph.op(name, made, makes={"drift": 2e-3, "dead": 1e-4})
    assert graph.found() == []
