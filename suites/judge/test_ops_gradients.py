"""Sums of gradients that autograd makes in a low format: when they are told, on which line, and in which words.

By hand: of the sums that were tried in torch, those that are so far off stand still as well, and are told as absorption; the others stay within
the limit.
"""

from __future__ import annotations

import pytest
from graph import Graph, above, given

from precheck.analysis import chance
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.op_notes import Summed
from precheck.observe.shadow.operations import Value
from precheck.rules.accumulated_drift.rule import CERTAIN, INDEPENDENT, ROUNDINGS

U = 2.0**-8


def summed(terms: int, off: float, drift: float | None = None, *, between: float = 0.6, count: int = 1024, **facts: object) -> Graph:
    """The last addition of a sum of so many gradients, each made by a product on the line of its use; the sum is widened and kept.

    `between`: the size of the sums on the way, beside the last; `count`: the elements.
    """
    graph = Graph()
    before = given()
    last = graph.op("mm.default", given(), given(), phase="backward", derived=True)
    made = {"drift": off if drift is None else drift, "shape": (count,)}
    whole = graph.op("add.Tensor", before, last, phase="backward", derived=True, makes=made, **facts)
    graph.last.summed = Summed(terms, off, between)
    kept: Value = graph.op("_to_copy.default", whole, phase="backward", derived=True, makes={"dtype": "float32", "drift": drift or off})
    kept.alive = True
    return graph


def test_it_is_told_on_the_line_that_reads_the_value() -> None:
    (finding,) = summed(400, 0.13).found()
    assert (finding.rule, finding.severity, finding.phase, finding.op) == ("accumulated-drift", "error", "backward", "aten.add.Tensor")
    assert finding.source == "model.py:1"
    for words in ("has 400 gradients", "adds them up in bfloat16", "13%", "33.3 unit roundoffs"):
        assert words in finding.message
    assert finding.remedy == "cast the tensor to float32 once, before all its uses; for a weight under autocast, set cache_enabled=False"
    assert (finding.measured, finding.limit) == (pytest.approx(0.13 / U), INDEPENDENT * 20)


@pytest.mark.parametrize("terms", [16, 100, 256, 1000])
def test_as_many_roundings_as_are_independent_are_let_be(terms: int) -> None:
    limit = max(ROUNDINGS, INDEPENDENT * terms**0.5) * U
    assert not summed(terms, limit).found()
    assert summed(terms, above(limit)).found()


def test_gradients_that_cancel_may_be_off_by_the_roundings_of_their_larger_sums() -> None:
    limit = 5 * INDEPENDENT * 16**0.5 * U
    assert not summed(16, limit, between=5).found()
    assert summed(16, above(limit), between=5).found()


def test_one_number_may_be_off_by_more_than_many_are_on_average() -> None:
    limit = ONE_ROUNDING * chance.largest_ratio_by_chance(1, CERTAIN, 1) * 16**0.5 * U
    assert limit > 4 * INDEPENDENT * 16**0.5 * U
    assert not summed(16, limit, count=1).found()
    assert summed(16, above(limit), count=1).found()


def test_what_was_off_before_it_was_added_up_is_no_fault_of_the_sum() -> None:
    assert not summed(400, 0.13, drift=0.2).found()
    assert summed(400, 0.13, drift=0.14).found()


def test_a_sum_that_goes_on_is_told_at_its_end() -> None:
    graph = summed(400, 0.13)
    operation = graph.observation.operations[1]
    graph.op("add.Tensor", operation.outputs[0], given(), phase="backward", derived=True, makes={"drift": 0.14})
    graph.last.summed = Summed(401, 0.14, 0.6)
    (finding,) = graph.found()
    assert "has 401 gradients" in finding.message


def test_what_a_parameter_holds_is_told_where_it_is_added_to() -> None:
    (finding,) = summed(400, 0.13, in_place=True).found()
    assert finding.source == "model.py:2"
