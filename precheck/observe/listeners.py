"""Tells listeners what a run is doing, and the report of each check. The plugin sets listeners for a block. By default there are none.

Imports neither torch nor numpy, so that a listener does not have to either.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any

SILENCE = 1.0
"""Seconds between two reports of progress. Two seconds of silence look like a hang."""

Hears = Callable[[str], None]
"""Called with the current activity, "recording the golden: noise run 3 of 4", and with "" when all has ended."""

Judges = Callable[[Any, Any, Any, Any], None]
"""Called after a `check` with its job, precision, path of golden, and report."""

_hears: ContextVar[Hears | None] = ContextVar("precheck_hears", default=None)
_judges: ContextVar[Judges | None] = ContextVar("precheck_judges", default=None)
_stopwatch: ContextVar[Stopwatch | None] = ContextVar("precheck_stopwatch", default=None)
_failures: ContextVar[list[Any] | None] = ContextVar("precheck_failures", default=None)
_doing: ContextVar[tuple[str, ...]] = ContextVar("precheck_doing", default=())


@contextlib.contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def telling(hears: Hears) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, `hears` is called. It must not raise, since the verb would raise the same."""
    return _set(_hears, hears)


@contextlib.contextmanager
def doing(words: str) -> Iterator[None]:
    """Tells the listener what the block does. For nested blocks it tells all of them, outermost first, and only the end of the outermost."""
    hears, stopwatch, outer = _hears.get(), _stopwatch.get(), _doing.get()
    if hears is None and stopwatch is None:
        yield
        return
    token, begun = _doing.set((*outer, words)), monotonic()
    if hears is not None:
        hears(": ".join((*outer, words)))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a watched block of an asynchronous fixture ends in another context, which this one is not set in
            _doing.reset(token)
        if not outer and hears is not None:
            hears("")
        if not outer and stopwatch is not None:
            stopwatch.add(words, monotonic() - begun)


def otherwise(words: str) -> contextlib.AbstractContextManager[None]:
    """The same as `doing`, if no outer block has told anything yet."""
    return contextlib.nullcontext() if _doing.get() else doing(words)


class Progress:
    """Counts the ops of a run, or other things. After `SILENCE` without a report it tells the listener the count."""

    __slots__ = ("hears", "last", "ops", "outer", "what")

    def __init__(self, what: str = "op") -> None:
        self.hears, self.outer, self.ops, self.last, self.what = _hears.get(), _doing.get(), 0, monotonic(), what

    def op(self) -> None:
        self.ops += 1
        if self.hears is not None and self.outer and monotonic() - self.last >= SILENCE:
            self.last = monotonic()
            self.hears(f"{': '.join(self.outer)}, at {self.what} {self.ops}")


class Stopwatch:
    """How long a verb takes, and its parts: what `doing` says inside a block of `timed`. Parts of parts are not told apart."""

    __slots__ = ("begun", "parts")

    def __init__(self) -> None:
        self.begun = monotonic()
        self.parts: dict[str, float] = {}

    def add(self, words: str, seconds: float) -> None:
        """Adds up what differs in its number or its detail only: "noise run 1 of 2" and "noise run 2 of 2" are one part."""
        part = re.sub(r" \d+ of .*", "", words.partition(",")[0])
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return monotonic() - self.begun


def timed(stopwatch: Stopwatch) -> contextlib.AbstractContextManager[Any]:
    """Inside the block `stopwatch` is told how long each part takes."""
    return _set(_stopwatch, stopwatch)


def judging(judges: Judges | None) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, `judges` is called after each check. None: nothing is called."""
    return _set(_judges, judges)


def judged(job: Any, precision: Any, golden: Any, report: Any) -> None:
    """Tells the listener that a check has been made. It is not called for checks that it makes itself."""
    judges = _judges.get()
    if judges is not None:
        with judging(None):
            judges(job, precision, golden, report)


def collecting() -> contextlib.AbstractContextManager[list[Any]]:
    """Inside the block, the list gets each `Measurement` that finds errors. A search for a remedy then uses its runs instead of repeating them."""
    return _set(_failures, [])


def failed(measurement: Any) -> None:
    """Gives a measurement that has found errors to whoever collects them."""
    failures = _failures.get()
    if failures is not None:
        failures.append(measurement)
