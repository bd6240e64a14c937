"""Additions that did not arrive: each limit from just below and just above, and what is nobody's fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from graph import Graph, above, below, given

from precheck import formats
from precheck.observe.shadow.operations import Absorbed
from precheck.rules.absorption import rule as absorption

U = formats.of_dtype("bfloat16").unit_roundoff
STUCK = Absorbed(
    share=1.0,
    times=absorption.TIMES,
    additions=absorption.TIMES,
    arrived=0.6,
    intended=100 * U,
    lost=0.4,
    drift=absorption.ROUNDINGS * U,
)
"""A sum that stands still, at every limit of the first kind. It came a good part of its way before that."""
FROZEN = Absorbed(share=1.0, times=1, additions=int(absorption.UPDATES), arrived=0.0, intended=absorption.INTENDED * U, lost=1.0, drift=2 * U)
"""An average that never moved, at every limit of the second kind."""
MERGED = Absorbed(share=0.9, times=1, additions=1, arrived=0.2, intended=0.9 * U, lost=0.8, drift=0.3 * U)
"""A low-rank update, most of which a weight swallows."""


def judged(absorbed: Absorbed, name: str = "add_.Tensor", **facts: Any) -> list[tuple[str, int]]:
    graph = Graph()
    graph.op(name, given(), given(), absorbed=absorbed, **({"in_place": name.partition(".")[0].endswith("_")} | facts))
    return accused_by(graph)


def accused_by(graph: Graph) -> list[tuple[str, int]]:
    """The rule and the line of each error."""
    return [(finding.rule, int(finding.source.rpartition(":")[2])) for finding in graph.found() if finding.severity == "error"]


def test_each_kind_is_found() -> None:
    assert [judged(kind) for kind in (STUCK, FROZEN, MERGED)] == [[("absorption", 1)]] * 3


@pytest.mark.parametrize("change", [
    {"share": 0.49},
    {"times": absorption.TIMES - 1},
    {"drift": below(absorption.ROUNDINGS * U)},
    {"intended": below(absorption.INTENDED * U)},
    {"arrived": 1.0},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_sum_that_falls_short_of_any_limit_is_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(STUCK, **change)) == []


@pytest.mark.parametrize("change", [
    {"additions": int(absorption.UPDATES) - 1},
    {"arrived": absorption.ARRIVED},
    {"intended": below(absorption.INTENDED * U)},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_updates_that_fall_short_of_any_limit_are_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(FROZEN, **change)) == []


@pytest.mark.parametrize(("facts", "accused"), [({}, True), ({"name": "add.Tensor"}, False), ({"phase": "backward"}, False)])
def test_only_what_is_written_in_place_and_forward_has_updates(facts: dict[str, Any], accused: bool) -> None:
    assert bool(judged(FROZEN, **facts)) is accused


def test_a_sum_is_judged_wherever_it_is_made() -> None:
    """Rebinding a name, autograd's own accumulation, an optimizer's state."""
    assert judged(STUCK, "add.Tensor") == [("absorption", 1)]
    assert judged(STUCK, phase="backward") == [("absorption", 1)]
    assert judged(STUCK, phase="optimizer", in_optimizer=True) == [("absorption", 1)]


@pytest.mark.parametrize("kind", [STUCK, FROZEN, MERGED])
def test_weights_in_an_optimizer_are_judged_by_their_whole_step(kind: Absorbed) -> None:
    assert judged(kind, phase="optimizer", in_optimizer=True, parameter=1) == []


@pytest.mark.parametrize("change", [
    {"share": 0.5},
    {"lost": absorption.ARRIVED},
    {"intended": U},
    {"additions": 2},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_merge_that_mostly_arrives_is_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(MERGED, **change)) == []


@pytest.mark.parametrize(("facts", "accused"), [
    ({}, True),
    ({"name": "add.Tensor"}, False),
    ({"name": "add.Tensor", "parameter": 1}, True),
    ({"name": "mul_.Tensor"}, False),
    ({"phase": "backward"}, False),
    ({"phase": "optimizer", "in_optimizer": True}, False),
])  # fmt: skip
def test_a_merge_is_one_addition_to_something_kept(facts: dict[str, Any], accused: bool) -> None:
    assert bool(judged(MERGED, **facts)) is accused


@pytest.mark.parametrize(("maker", "accused"), [("_to_copy.default", True), ("mean.dim", False), ("mm.default", False)])
def test_what_is_merged_into_was_stored_not_computed(maker: str, accused: bool) -> None:
    graph = Graph()
    graph.op("add_.Tensor", graph.op(maker, given()), given(), absorbed=MERGED, in_place=True)
    assert bool(accused_by(graph)) is accused


@pytest.mark.parametrize(("reader", "first", "shape", "accused"), [
    ("mm.default", False, (64,), True), ("mm.default", True, (64,), False), ("native_layer_norm.default", True, (64,), False),
    ("mm.default", False, (16,), False),
])  # fmt: skip
def test_a_sum_with_a_parameter_is_a_merge_where_it_is_used_as_a_weight(reader: str, first: bool, shape: tuple[int, ...], accused: bool) -> None:
    """All of the parameter, that is: a token or a bias that is spread over a batch is a term of an activation."""
    graph, other = Graph(), given()
    made = graph.op("add.Tensor", given(shape=shape), graph.op("mm.default", other), absorbed=MERGED, parameter=1)
    graph.op(reader, *((made, other) if first else (other, made)))
    assert bool(accused_by(graph)) is accused


@pytest.mark.parametrize(("size", "accused"), [(15, False), (16, True)])
def test_a_few_numbers_are_too_few_for_a_share(size: int, accused: bool) -> None:
    graph = Graph()
    graph.op("add_.Tensor", given(), given(), absorbed=MERGED, in_place=True, makes={"shape": (size,)})
    assert bool(accused_by(graph)) is accused


def test_the_message_has_the_number_that_is_beyond_its_limit() -> None:
    graph = Graph()
    graph.op("add.Tensor", given(), absorbed=dataclasses.replace(STUCK, drift=above(0.25)))
    graph.op("add_.Tensor", given(), absorbed=FROZEN, in_place=True)
    summed, frozen = graph.found()
    assert "25 % off" in summed.message
    assert summed.measured is not None
    assert summed.measured > (summed.limit or 0.0) == absorption.ROUNDINGS
    assert "0 % of 8 updates" in frozen.message
    assert frozen.measured is not None
    assert frozen.measured < (frozen.limit or 0.0) == absorption.ARRIVED


def noted(absorbed: Absorbed, name: str = "add_.Tensor", step: int = 1, **facts: Any) -> list[str]:
    graph = Graph()
    graph.op(name, given(), given(), absorbed=absorbed, step=step, **({"in_place": name.partition(".")[0].endswith("_")} | facts))
    return [finding.message for finding in graph.found() if finding.severity == "note"]


FEW = dataclasses.replace(FROZEN, additions=2)
"""An average that has not moved in two updates."""


def test_too_few_additions_are_told_with_the_steps_that_would_tell() -> None:
    (message,) = noted(dataclasses.replace(FEW, intended=absorption.INTENDED * U))
    assert "too few steps to tell whether it stands still: 100 % of the elements that 2 updates should have moved did not move" in message
    assert "4 steps would tell" in message  # two additions a step, and eight are needed
    (message,) = noted(dataclasses.replace(FEW, intended=absorption.INTENDED * U / 100))
    assert "100 steps would tell" in message  # by then it was to move by two roundings


@pytest.mark.parametrize("change", [{"share": 0.49}, {"arrived": absorption.ARRIVED}, {"intended": 0.0}])
def test_what_moves_is_not_waited_for(change: dict[str, Any]) -> None:
    assert noted(FEW)
    assert noted(dataclasses.replace(FEW, **change)) == []


@pytest.mark.parametrize("facts", [
    {"name": "add.Tensor"}, {"name": "mul_.Tensor"}, {"phase": "backward"}, {"phase": "optimizer", "in_optimizer": True},
], ids=str)  # fmt: skip
def test_only_what_is_kept_is_waited_for(facts: dict[str, Any]) -> None:
    assert noted(FEW, **facts) == []


def test_nothing_is_waited_for_on_a_line_that_has_told() -> None:
    graph = Graph()
    for absorbed in (FEW, FROZEN):
        graph.op("add_.Tensor", given(), given(), absorbed=absorbed, in_place=True, source="model.py:7")
    assert [(finding.rule, finding.severity) for finding in graph.found()] == [("absorption", "error")]
