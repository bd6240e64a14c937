"""Keeps down what Python's own garbage collector and frame stack cost a measurement."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import ParamSpec, TypeVar

__tracebackhide__ = True  # pytest leaves out this module's frames
Given = ParamSpec("Given")
Result = TypeVar("Result")
_ROOM = 1 << 15
"""Words of a frame that stand for all that are called below it: 256 KiB. A frame of a model or of precheck has 10 to 50."""


def spared(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator: the call is `sparing` and `roomy`."""

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with sparing():
            return function(*args, **kwargs)

    return roomy(called)


def roomy(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator: calls below this one never cross from one piece of Python's frame stack to the next.

    From Python 3.11 on frames lie in pieces of 16 KiB. A call that does not fit gets a new piece from the operating system, and gives it back when it
    returns. Where a piece happens to end within the code that handles an op, each op does this many times: it took up to 2.7 times as long. A
    frame that is said to need more room gets a larger piece, and what it calls lies in the rest of that.
    """

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return function(*args, **kwargs)

    if isinstance(called, FunctionType):
        called.__code__ = called.__code__.replace(co_stacksize=_ROOM)
    return called


class _Frozen:
    """Who has frozen objects. `gc.get_freeze_count` walks over all of them: 64 ms for the 200 000 that torch and transformers make."""

    by_precheck = False
    by_process = False
    """Once seen it is taken to stay so."""


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """A block in which the collector visits only objects that were made there. If the process has frozen objects itself, this does nothing.

    The record of a run is tens of thousands of objects, which triggers collections of all generations. Each would visit every object of the process,
    a quarter of a million once torch is imported. That takes a tenth of a second and frees nothing.
    """
    _Frozen.by_process = _Frozen.by_process or (not _Frozen.by_precheck and gc.get_freeze_count() > 0)
    if _Frozen.by_precheck or _Frozen.by_process:
        yield
        return
    gc.freeze()
    _Frozen.by_precheck = True
    try:
        yield
    finally:
        _Frozen.by_precheck = False
        gc.unfreeze()
