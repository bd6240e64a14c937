"""Calls of chosen functions are told, by whichever means the version of Python has."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

import pytest

from precheck.observe.profiling import Unheard
from precheck.observe.recording import call_events

MODERN = sys.version_info >= (3, 12)
MONITORING = pytest.param("monitoring", marks=pytest.mark.skipif(not MODERN, reason="Python 3.12 has it first"))


@pytest.fixture(params=["setprofile", MONITORING], autouse=True)
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "setprofile":
        monkeypatch.setattr(call_events, "_free", lambda: None)


def outer(number: int) -> int:
    return inner(number) + other(number)


def inner(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number + 1


def other(number: int) -> int:
    return 2 * number


class Told:
    """What is told of `outer` and `inner`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []

    def chosen(self, code: CodeType) -> bool:
        return code in (outer.__code__, inner.__code__)

    def begins(self, frame: FrameType) -> None:
        self.events.append(("begins", frame.f_code.co_name, frame.f_locals["number"]))

    def returns(self, frame: FrameType, result: Any) -> None:
        self.events.append(("returns", frame.f_code.co_name, result))

    def block(self) -> Any:
        return call_events.told(self.chosen, self.begins, self.returns)


CALL = [("begins", "outer", 3), ("begins", "inner", 3), ("returns", "inner", 4), ("returns", "outer", 10)]


def test_chosen_functions_are_told_with_their_results() -> None:
    told = Told()
    with told.block():
        outer(3)
        outer(3)
    outer(3)
    assert told.events == CALL + CALL


def test_a_function_that_raises_has_no_result() -> None:
    told = Told()
    with told.block(), pytest.raises(ValueError, match="-1"):
        outer(-1)
    assert told.events == [("begins", "outer", -1), ("begins", "inner", -1), ("returns", "inner", None), ("returns", "outer", None)]


def test_nothing_is_told_in_a_pause_nor_of_other_threads() -> None:
    told = Told()
    with told.block():
        with Unheard():
            outer(1)
        thread = threading.Thread(target=outer, args=(2,))
        thread.start()
        thread.join()
        outer(3)
    assert told.events == CALL


def test_blocks_may_lie_in_each_other_and_choose_anew() -> None:
    first, second, third = Told(), Told(), Told()
    second.chosen = lambda code: code is other.__code__  # type: ignore[method-assign]
    with first.block():
        outer(3)
        with second.block():
            outer(3)
        outer(3)
    with third.block():
        outer(3)
    assert second.events == [("begins", "other", 3), ("returns", "other", 6)]
    assert first.events == 3 * CALL
    assert third.events == CALL
    assert sys.getprofile() is None


@pytest.mark.skipif(not MODERN, reason="Python 3.12 has sys.monitoring first")
def test_an_identifier_is_given_back_and_none_is_no_obstacle(request: pytest.FixtureRequest) -> None:
    if "monitoring" not in request.node.name:
        pytest.skip("of sys.monitoring alone")
    monitoring, told = sys.monitoring, Told()  # type: ignore[attr-defined, unused-ignore]
    with told.block():
        assert monitoring.get_tool(4) == "precheck"
    assert monitoring.get_tool(4) is None
    for identifier in (3, 4):
        monitoring.use_tool_id(identifier, "another")
    try:
        with told.block():
            outer(3)
    finally:
        for identifier in (3, 4):
            monitoring.free_tool_id(identifier)
    assert told.events == CALL
