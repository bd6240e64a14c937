"""Tells when chosen functions begin and return, in the thread that asks.

From Python 3.12 on by `sys.monitoring`, which forgets code that is not asked about after its first call. Before that, or where no identifier of
`sys.monitoring` is free, by `sys.setprofile`, which is called for each function; one that was set before is called too. While a dispatch mode handles
an op nothing is told (`profiling`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from precheck.observe import profiling

_IDENTIFIERS = (4, 3)  # those of sys.monitoring that no kind of tool is named for

Chosen = Callable[[CodeType], bool]
Begins = Callable[[FrameType], None]
Returns = Callable[[FrameType, Any], None]


@contextlib.contextmanager
def told(chosen: Chosen, begins: Begins, returns: Returns) -> Iterator[None]:
    """Inside, calls `begins(frame)` and `returns(frame, result)` for each call of a function whose code is chosen, with None as the result of one
    that raises. The answers of `chosen` must stay the same. Under a profiler written in C, such as cProfile, before Python 3.12 nothing is told."""
    identifier = _free()
    with _monitored(identifier, chosen, begins, returns) if identifier is not None else _profiled(chosen, begins, returns):
        yield


class Profiled:
    """A profile function that is paused by taking it away. One that calls the user's is never paused."""

    def __init__(self, function: Any, *, pausable: bool) -> None:
        self.function, self.pausable = function, pausable

    def pause(self) -> bool:
        if not self.pausable or sys.getprofile() is not self.function:
            return False
        sys.setprofile(None)
        return True

    def resume(self) -> None:
        sys.setprofile(self.function)


@contextlib.contextmanager
def _profiled(chosen: Chosen, begins: Begins, returns: Returns) -> Iterator[None]:
    outer = sys.getprofile()
    if outer is not None and not callable(outer):
        yield
        return

    open_: list[FrameType] = []  # of the chosen functions that have begun

    def event(frame: FrameType, kind: str, argument: Any) -> None:
        if outer is not None:
            outer(frame, kind, argument)  # type: ignore[arg-type]
        if kind == "call" and chosen(frame.f_code):
            open_.append(frame)
            begins(frame)
        elif kind == "return" and open_ and open_[-1] is frame:
            returns(open_.pop(), argument)

    profiling.begun(Profiled(event, pausable=outer is None))
    sys.setprofile(event)
    try:
        yield
    finally:
        sys.setprofile(outer)
        profiling.ended()


class Monitored:
    """Callbacks that are paused by not listening."""

    def __init__(self) -> None:
        self.listening, self.thread = True, threading.get_ident()

    def pause(self) -> bool:
        was, self.listening = self.listening, False
        return was

    def resume(self) -> None:
        self.listening = True

    def hears(self) -> bool:
        return self.listening and threading.get_ident() == self.thread


def _free() -> int | None:
    """An identifier of `sys.monitoring` that nobody uses. None if there is none, or before Python 3.12."""
    if sys.version_info >= (3, 12):
        return next((each for each in _IDENTIFIERS if sys.monitoring.get_tool(each) is None), None)
    return None


@contextlib.contextmanager
def _monitored(identifier: int, chosen: Chosen, begins: Begins, returns: Returns) -> Iterator[None]:
    if sys.version_info < (3, 12):
        raise NotImplementedError
    else:
        monitoring, listener = sys.monitoring, Monitored()
        events = monitoring.events

        def started(code: CodeType, offset: int) -> Any:
            if not chosen(code):
                return monitoring.DISABLE
            return begins(sys._getframe(1)) if listener.hears() else None

        def returned(code: CodeType, offset: int, result: Any) -> Any:
            if not chosen(code):
                return monitoring.DISABLE
            return returns(sys._getframe(1), result) if listener.hears() else None

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:  # this event cannot be disabled
            if listener.hears() and chosen(code):
                returns(sys._getframe(1), None)

        monitoring.use_tool_id(identifier, "precheck")
        try:
            for event, callback in ((events.PY_START, started), (events.PY_RETURN, returned), (events.PY_UNWIND, unwound)):
                monitoring.register_callback(identifier, event, callback)
            monitoring.set_events(identifier, events.PY_START | events.PY_RETURN | events.PY_UNWIND)
            monitoring.restart_events()  # an earlier block may have chosen other functions
            profiling.begun(listener)
            try:
                yield
            finally:
                profiling.ended()
        finally:
            monitoring.set_events(identifier, 0)
            for event in (events.PY_START, events.PY_RETURN, events.PY_UNWIND):
                monitoring.register_callback(identifier, event, None)
            monitoring.free_tool_id(identifier)
