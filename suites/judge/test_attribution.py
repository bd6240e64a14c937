"""Whose rounding an error is; how often a walk back over a run is made, and what of it is kept for the next."""

from __future__ import annotations

import math

import pytest
from graph import Graph, given

from precheck.analysis import attribution, causes
from precheck.analysis.attribution import OFTEN, Attempts, Attribution, Splits
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.source import Function


def test_a_line_of_a_long_loop_is_asked_about_ever_more_rarely() -> None:
    """Each walk goes over all turns before, so all walks together are to cost no more than a few over the whole loop."""
    asked, walks = Attempts(), list[int]()
    for turn in range(10_000):
        if asked.due(("line",)):
            walks.append(turn)
            asked.failed(("line",))
    assert walks[:OFTEN] == list(range(OFTEN))
    assert sum(walks) < 3 * 10_000


def test_a_line_that_answers_is_asked_each_time() -> None:
    asked = Attempts()
    assert all(asked.due(("line",)) for _ in range(100))
    assert asked.due(("another",))


def test_what_an_error_is_made_of_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state = Graph(), given()
    states = [state := graph.op("add.Tensor", state, given("float32"), makes={"drift": 0.01 * turn}) for turn in range(1, 9)]
    splits, told, asked = Splits(), attribution._carried, list[object]()
    monkeypatch.setattr(attribution, "_carried", lambda *args: (asked.append(args[1]), told(*args))[1])
    shared = [Attribution(state, graph.observation.operations, splits).shares for state in states]
    first = len(asked)
    assert shared == [Attribution(state, graph.observation.operations).shares for state in states]
    assert len(asked) > 3 * first


def running(zeroed: float = 0.0) -> tuple[Graph, Value]:
    """A running sum that is stored low, and the differences of its ends: parts of one tensor, so that the op has read it twice."""
    graph, one_rounding = Graph(), 0.42 * 2.0**-8
    total = graph.op("cumsum.default", given("float32"), makes={"drift": one_rounding, "norm": 1000.0, "shape": (4000,)})
    ends = {"drift": 67 * one_rounding, "norm": 1000 * math.sqrt(2 * 300 / 4000) / 67, "shape": (300,), "zeroed": zeroed}
    return graph, graph.op("sub.Tensor", total, total, makes=ends)


def test_each_part_of_a_tensor_brings_an_error_to_a_difference() -> None:
    graph, made = running()
    shares = Attribution(made, graph.observation.operations).shares
    assert shares[graph.observation.operations[0]] == pytest.approx(1.0, abs=0.01)


def test_a_difference_makes_no_zeros_itself() -> None:
    """Where it is zero and should not be, its terms were rounded to the same number."""
    graph, made = running(zeroed=0.2)
    assert Attribution(made, graph.observation.operations).cause() is graph.observation.operations[0]
    product = graph.op("mul.Tensor", made, made, makes={"drift": 0.5, "zeroed": 0.4})
    assert attribution.own(graph.last, product) == pytest.approx(0.2)


def test_parts_of_a_running_sum_are_to_be_mended_where_that_is_stored() -> None:
    graph, made = running()
    whose = Attribution(made, graph.observation.operations)
    assert whose.difference(graph.observation.operations[0], {}) is None


@pytest.mark.parametrize(("low", "call", "found"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_a_helper_that_is_given_low_numbers_is_not_to_be_mended(low: bool, call: int, found: bool) -> None:
    """Of the same call only, and not one that has made them low itself."""
    graph = Graph()
    x = graph.op("log1p.default", given("bfloat16" if low else "float32"), makes={"drift": 0.0016}, call=1)
    graph.op("sub.Tensor", x, given(), makes={"drift": 0.04}, call=call)
    functions = {"model.py:1": Function("model.py:1", "symlog"), "model.py:2": Function("model.py:2", "between")}
    whose = Attribution(graph.last.outputs[0], graph.observation.operations)
    assert (whose.difference(graph.observation.operations[0], functions) is graph.last) is found


@pytest.mark.parametrize(("cut", "shares_operand"), [(True, True), (False, False)])
def test_a_remainder_that_is_written_out_is_kin_to_what_it_is_of(cut: bool, shares_operand: bool) -> None:
    """x - b * round(x / b) loses no digit: x had lost them when it was stored. x - 0.9 x is a difference of two numbers."""
    graph = Graph()
    x = graph.op("_to_copy.default", given("float32"))
    turns = graph.op("div.Tensor", x, given())
    graph.op("sub.Tensor", x, graph.op("mul.Tensor", given(), graph.op("round.default", turns) if cut else turns))
    assert causes.shares_operand(graph.last) is shares_operand


@pytest.mark.parametrize(("joins", "shares_operand"), [("two products", False), ("a zero and a running sum", True)])
def test_parts_of_what_was_joined_are_kin_where_one_tensor_was_joined_to_constants(joins: str, shares_operand: bool) -> None:
    """A workspace of products that is reduced holds several numbers; a running sum with a zero before it holds one."""
    graph = Graph()
    if shares_operand:
        first = graph.op("zeros.default", makes={"shape": (1,)})
        other = graph.op("cumsum.default", given("float32"), makes={"shape": (7,)})
    else:
        first, other = (graph.op("mul.Tensor", given("float32"), makes={"shape": (4,)}) for _ in range(2))
    joined = graph.op("cat.default", first, other, makes={"shape": (8,)})
    total = graph.op("sub.Tensor", joined, joined, makes={"shape": (4,)})
    assert causes.shares_operand(graph.last) is shares_operand
    graph.op("sub.Tensor", total, joined, makes={"shape": (4,)})  # the next part of it
    assert causes.shares_operand(graph.last) is shares_operand


def test_a_whole_that_was_joined_is_kin_to_what_is_made_of_it() -> None:
    graph = Graph()
    joined = graph.op("cat.default", *(graph.op("mul.Tensor", given("float32"), makes={"shape": (4,)}) for _ in range(2)), makes={"shape": (8,)})
    moved = graph.op("add.Tensor", joined, given("float32"), makes={"shape": (8,)})
    graph.op("sub.Tensor", moved, joined, makes={"shape": (8,)})
    assert causes.shares_operand(graph.last)


def test_parts_of_one_tensor_that_are_joined_are_parts_of_it_still() -> None:
    """`torch.diff` with what to put before it joins the first element of a running sum to others of it."""
    graph = Graph()
    running = graph.op("cumsum.default", given("float32"), makes={"shape": (8,)})
    ends = graph.op("index.Tensor", running, makes={"shape": (4,)})
    first = graph.op("clone.default", running, makes={"shape": (1,)})
    joined = graph.op("cat.default", first, ends, makes={"shape": (5,)})
    graph.op("sub.Tensor", joined, joined, makes={"shape": (4,)})
    assert causes.moved(joined) is running
    assert causes.shares_operand(graph.last)
