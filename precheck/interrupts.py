"""Delays interrupts (Ctrl-C, timeouts) while precheck or torch changes or restores a global setting, so that no setting is left changed.

Python calls a signal handler between any two bytecodes. So the exception that a handler raises (KeyboardInterrupt, or that of pytest-timeout) may
arrive after a switch is set and before its `finally` begins, or within a `finally`. Inside `held()` handlers are called at once as usual. But their
exception waits while the program is in an `__enter__` or `__exit__` of precheck or torch, or in a function marked `whole`. It is raised as soon as
these have ended, and a second one does not stop them either. So an interrupt propagates like any exception of the user's code.

This covers the exceptions of all signal handlers, which Python calls in the main thread only. It does not cover exceptions that another thread sets
on this one (PyThreadState_SetAsyncExc), handlers that the block itself sets until the next `held()`, and a process that is killed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without enums, which would cost a third of a millisecond here
import _thread
import _weakrefset
import contextlib
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_SECONDS = 0.001
"""A waiting interrupt is tried again after this time, in which a switch is done."""
_PRECHECK = str(Path(__file__).parent)
_CONTEXTLIB = contextlib.ExitStack.enter_context.__code__.co_filename
_CALLBACKS = (weakref.__file__, _weakrefset.__file__)
_SWITCHES = ("__enter__", "__exit__", "enter_context")
_NUMBERS = tuple(map(int, signal.valid_signals()))
_whole: set[CodeType] = set()
_interruptible: set[CodeType] = set()

_holds: list[Held] = []
_owners: dict[int, Callable[..., Any]] = {}  # the handler that each signal had
_waiting: BaseException | None = None
_reminder = 0  # the number of the signal that tries a waiting interrupt again
_reminding = _thread.allocate_lock()


def whole(function: Function) -> Function:
    """Marks a function that must not be interrupted, since it would leave something changed. It has to be short."""
    _whole.add(function.__code__)
    return function


def interruptible(function: Function) -> Function:
    """Marks a function that may be interrupted although an `__exit__` calls it."""
    _interruptible.add(function.__code__)
    return function


def held() -> Held:
    """A block, or a decorator of a function: inside, interrupts wait for the end of a switch. It can be nested. At its end all signal handlers are
    as before."""
    return Held()


class Held(contextlib.ContextDecorator):
    """The context manager of `held`. It replaces all signal handlers, and stores the former ones."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Callable[..., Any], Callable[..., Any] | None]] = []
        self.around: CodeType | None = None

    def _recreate_cm(self) -> Held:
        """Each call of a decorated function has a block of its own."""
        return Held()

    def __enter__(self) -> None:
        global _waiting
        if threading.get_ident() != threading.main_thread().ident:
            return
        self.around = _opening_code()
        if not _holds:
            _waiting = None
        try:
            self._take()
            _holds.append(self)
        except BaseException:
            self._give_back()
            raise

    def __exit__(self, *raised: object) -> None:
        global _waiting
        if self not in _holds:
            return
        with _reminding:
            place = _holds.index(self)
            _holds.remove(self)
        if place < len(_holds):
            _holds[place].taken[:0] = self.taken  # another block that began later is still open
        else:
            self._give_back()
        if not _holds and _waiting is not None:
            error, _waiting = _waiting, None
            raise error

    def _take(self) -> None:
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler) and handler is not _arrived:
                self.taken.append((number, handler, _owners.get(number)))
                _owners[number] = handler
                _signal.signal(number, _arrived)

    def _give_back(self) -> None:
        try:
            while self.taken:
                number, handler, before = self.taken[-1]
                if _signal.getsignal(number) is _arrived:  # otherwise the user's code has set its own
                    _signal.signal(number, handler)
                if before is not None:
                    _owners[number] = before
                self.taken.pop()
        finally:
            if self.taken:  # a handler that was just restored has raised an exception
                self._give_back()


_TAKING = {method.__code__ for method in (Held.__enter__, Held.__exit__, Held._take, Held._give_back)}


def _arrived(number: int, frame: FrameType | None) -> None:
    """The handler of all signals inside a block. Calls the former handler, and delays the exception that it raises if need be."""
    global _waiting, _reminder
    reminded = _reminder == number
    _reminder = 0 if reminded else _reminder
    if not _holds and not any(each.f_code in _TAKING for each in _frame_and_callers(frame)):
        _owners[number](number, frame)
        return
    if not reminded:
        try:
            _owners[number](number, frame)
        except BaseException as error:
            _waiting = _waiting or error.with_traceback(None)
    if _waiting is None:
        return
    if _switching(frame, _holds[-1].around if _holds else None):
        if not reminded:
            _thread.start_new_thread(_remind, (number,))  # not threading.Thread, whose locks may be held by the interrupted code
        return
    interrupt, _waiting = _waiting, None
    raise interrupt


def _remind(number: int) -> None:
    global _reminder
    while True:
        time.sleep(_SECONDS)
        with _reminding:
            if _waiting is None or not _holds or _signal.getsignal(number) is not _arrived:
                return
            _reminder = number
            _thread.interrupt_main(number)  # type: ignore[arg-type]


def _opening_code() -> CodeType | None:
    """The code that opened the block: the user's with statement, or the user's call of a verb. `_switching` looks no further out than this."""
    codes = (frame.f_code for frame in _frame_and_callers(sys._getframe(1)))
    return next((code for code in codes if not code.co_filename.startswith((_PRECHECK, _CONTEXTLIB))), None)


def _switching(frame: FrameType | None, around: CodeType | None) -> bool:
    torch = sys.modules.get("torch")
    own = (_PRECHECK, *(torch.__path__ if torch is not None else ()))
    inner = _CONTEXTLIB
    for each in _frame_and_callers(frame):
        code, file = each.f_code, each.f_code.co_filename
        if code is around or code in _interruptible:
            return False
        if code in _whole or file in _CALLBACKS or code.co_name == "__del__":  # Python drops an exception raised in a finalizer
            return True
        if code.co_name in _SWITCHES and (file if file != _CONTEXTLIB else inner).startswith((*own, _CONTEXTLIB)):
            return True
        inner = file
    return False


def _frame_and_callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
