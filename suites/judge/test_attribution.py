"""How often a walk back over a run is made, and what of it is kept for the next."""

from __future__ import annotations

import pytest
from graph import Graph, given

from precheck.analysis import attribution
from precheck.analysis.attribution import OFTEN, Asked, Attribution, Splits


def test_a_line_of_a_long_loop_is_asked_about_ever_more_rarely() -> None:
    """Each walk goes over all turns before, so all walks together are to cost no more than a few over the whole loop."""
    asked, walks = Asked(), list[int]()
    for turn in range(10_000):
        if asked.again(("line",)):
            walks.append(turn)
            asked.vain(("line",))
    assert walks[:OFTEN] == list(range(OFTEN))
    assert sum(walks) < 3 * 10_000


def test_a_line_that_answers_is_asked_each_time() -> None:
    asked = Asked()
    assert all(asked.again(("line",)) for _ in range(100))
    assert asked.again(("another",))


def test_what_an_error_is_made_of_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state = Graph(), given()
    states = [state := graph.op("add.Tensor", state, given("float32"), makes={"drift": 0.01 * turn}) for turn in range(1, 9)]
    splits, told, asked = Splits(), attribution._brought, list[object]()
    monkeypatch.setattr(attribution, "_brought", lambda *args: (asked.append(args[1]), told(*args))[1])
    shared = [Attribution(state, graph.observation.operations, splits).shares for state in states]
    first = len(asked)
    assert shared == [Attribution(state, graph.observation.operations).shares for state in states]
    assert len(asked) > 3 * first
