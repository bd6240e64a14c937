"""Amplified errors are faults where an end of the run shows them: what the ends are, from how much on they show, and what excuses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, above, below, given

from precheck import formats
from precheck.analysis import output_impact

U = formats.of_dtype("bfloat16").unit_roundoff
SPOILT = {"drift": 0.9, "dead": 0.9}
FOUND, HEALED = [("amplified-rounding", 1)], []


def accused(graph: Graph) -> list[tuple[str, int]]:
    return [(finding.rule, int(finding.source.rpartition(":")[2])) for finding in graph.found() if finding.severity == "error"]


def through(*later: dict[str, Any], name: str = "exp.default") -> Graph:
    """A logarithm that is off, and what each op that follows makes of it."""
    graph = Graph()
    made = graph.op("log.default", given(), makes=SPOILT)
    for makes in later:
        made = graph.op(name, made, makes=makes)
    return graph


@pytest.mark.parametrize(("nudge", "found"), [(below, HEALED), (above, FOUND)])
def test_an_end_shows_eight_roundings_or_a_hundredth_without_a_digit(nudge: Any, found: list[Any]) -> None:
    assert accused(through({"drift": nudge(output_impact.ROUNDINGS * U)})) == found
    assert accused(through({"drift": U, "dead": nudge(output_impact.DEAD)})) == found


def test_an_end_that_is_not_finite_shows_whatever_the_rest_is() -> None:
    graph = through({"drift": 0.0})
    graph.last.outputs[0].nonfinite = 1
    graph.last.inputs[0].nonfinite = 1  # handed on, so that no event opens here
    assert ("amplified-rounding", 1) in accused(graph)


def test_what_is_off_on_the_way_alone_is_made_good() -> None:
    assert accused(through({"drift": 0.9}, {"drift": 0.9}, {"drift": U})) == HEALED


def test_what_is_made_good_is_a_note_that_says_so() -> None:
    """Other data, or other weights than these, might not make it good."""
    (finding,) = through({"drift": 0.9}, {"drift": U}).found()
    assert (finding.rule, finding.severity) == ("amplified-rounding", "note")
    assert finding.message.endswith("; every result computed from it here is right to a few roundings")


def test_a_number_that_python_reads_is_an_end() -> None:
    graph = through({"drift": 0.9}, {"drift": U})
    graph.read(graph.observation.operations[1].outputs[0])
    assert accused(graph) == FOUND


def test_what_becomes_an_index_is_an_end_and_what_is_compared_is_none() -> None:
    for name, found in (("_to_copy.default", FOUND), ("argmax.default", FOUND), ("gt.Scalar", HEALED), ("isfinite.default", HEALED)):
        graph = through({"drift": 0.9}, {"drift": U})
        graph.op(name, graph.observation.operations[1].outputs[0])
        graph.last.outputs = ()
        assert accused(graph) == found, name


def test_a_gradient_is_an_end_although_the_optimizer_reads_it() -> None:
    graph = through({"drift": 0.9}, {"drift": U})
    graph.observation.gradients[1] = ("weight", graph.observation.operations[1].outputs[0], 1.0)
    assert accused(graph) == FOUND


def test_what_the_shadow_could_not_follow_is_an_end() -> None:
    graph = through({"drift": 0.9}, {"drift": 0.0})
    graph.last.opaque = "not followed"
    assert accused(graph) == FOUND


@pytest.mark.parametrize(("nudge", "found"), [(below, HEALED), (above, FOUND)])
def test_a_step_that_is_garbage_is_harm_however_large_its_weight(nudge: Any, found: list[Any]) -> None:
    graph = through({"drift": 0.9, "dead": nudge(output_impact.GARBAGE)})
    step = graph.last.outputs[0]
    graph.op("sub_.Tensor", given(), step, makes={"drift": U / 8, "alive": True}, in_place=True)
    assert accused(graph) == found


def test_a_step_that_is_garbage_is_none_of_a_sum_that_the_block_uses_up() -> None:
    """A logarithm of a determinant near 1 that is added to a log-probability; the same into what stays is harm, however long it takes."""
    for alive, found in ((False, HEALED), (True, FOUND)):
        graph = through({"drift": 0.9, "dead": above(output_impact.GARBAGE)})
        total = graph.op("add_.Tensor", given(), graph.last.outputs[0], makes={"drift": U / 8}, in_place=True)
        graph.op("mul_.Tensor", total, makes={"drift": U / 8, "alive": alive}, in_place=True)
        assert accused(graph) == found


@pytest.mark.parametrize(("gradients", "alive", "phase", "found"), [
    (True, False, "forward", HEALED), (False, False, "forward", FOUND), (True, True, "forward", FOUND), (True, False, "backward", FOUND),
])  # fmt: skip
def test_what_nobody_takes_is_dropped_in_a_run_that_goes_on_to_gradients(gradients: bool, alive: bool, phase: str, found: list[Any]) -> None:
    """A loss' part whose weight is 0; without a backward pass in the block it may be what the block is for."""
    graph = through({"drift": 0.9, "alive": alive})
    graph.last.phase = phase
    if gradients:
        graph.observation.gradients[1] = ("weight", given(), 1.0)
    assert accused(graph) == found


def test_a_difference_that_is_made_good_is_a_note_unless_it_is_an_exponent() -> None:
    for reader, severity in (("mul.Tensor", "note"), ("exp.default", "error")):
        graph = Graph()
        small = graph.op("sub.Tensor", given(), given(), makes={"drift": 40 * U})
        graph.op(reader, graph.op("mul.Scalar", small, makes={"drift": 40 * U}), makes={"drift": U})
        (finding,) = graph.found()
        assert (finding.rule, finding.severity) == ("cancellation", severity)
        assert finding.message.endswith("; every result computed from it here is right to a few roundings") is (severity == "note")


@pytest.mark.parametrize(("phase", "found"), [("forward", []), ("optimizer", [("cancellation", 1)])])
def test_a_softmax_written_out_is_held_to_what_torchs_own_is(phase: str, found: list[Any]) -> None:
    """An optimizer that divides by the size of what a ratio led to makes no softmax of it."""
    graph = Graph()
    power = graph.op("exp.default", graph.op("sub.Tensor", given(), given(), makes={"drift": 40 * U}), makes={"drift": U})
    total = graph.op("sum.dim_IntList", power, makes={"drift": U}, phase=phase)
    graph.op("div.Tensor", power, total, makes={"drift": U}, phase=phase)
    assert graph.rules() == found


def test_the_logarithm_of_a_sum_is_one_too() -> None:
    graph = Graph()
    power = graph.op("exp.default", graph.op("sub.Tensor", given(), given(), makes={"drift": 40 * U}), makes={"drift": U})
    graph.op("log.default", graph.op("sum.dim_IntList", power, makes={"drift": U}), makes={"drift": U})
    assert graph.rules() == []


def test_a_copy_of_an_end_is_the_same_end() -> None:
    graph = through({"drift": 0.9})
    graph.op("_to_copy.default", graph.last.outputs[0])
    graph.last.outputs = graph.last.inputs
    assert accused(graph) == FOUND


def test_what_is_made_good_excuses_nothing_that_follows() -> None:
    graph = through({"drift": U / 8})
    small = graph.op("sub.Tensor", graph.last.outputs[0], makes={"drift": 40 * U})
    graph.op("exp.default", small, makes={"drift": U})
    assert accused(graph) == [("cancellation", 3)]


@pytest.mark.parametrize(("converts", "read", "found"), [(True, False, HEALED), (True, True, [("integer-rounding", 1)]),
                                                         (False, False, [("integer-rounding", 1)])])  # fmt: skip
def test_a_buffer_that_was_cast_with_its_module_is_no_result(converts: bool, read: bool, found: list[Any]) -> None:
    graph = Graph()
    positions = graph.op("_to_copy.default", given("float32"), makes={"drift": U, "wholes_moved": 9, "peak": 2047.0}, converts=converts)
    if read:
        graph.op("mul.Tensor", positions, makes={"drift": U})
    assert accused(graph) == found


@pytest.mark.parametrize(("dead", "reader", "severity"), [
    (0.5, "mean.dim", "error"), (0.5, "sum.default", "error"), (0.49, "mean.dim", "note"), (0.5, "exp.default", "note"),
])  # fmt: skip
def test_half_a_tensor_without_a_digit_is_harm_where_it_is_averaged(dead: float, reader: str, severity: str) -> None:
    """An average adds it to others and is right in the end; the inverse of what lost the digits makes them good."""
    graph = Graph()
    lost = graph.op("log.default", graph.op("_to_copy.default", given("float32"), makes={"drift": U / 8}), makes={"drift": 0.9, "dead": dead})
    graph.op("add.Tensor", graph.op(reader, lost, makes={"drift": U}), given(), makes={"drift": U})
    assert [(finding.rule, finding.severity) for finding in graph.found()] == [("amplified-rounding", severity)]
