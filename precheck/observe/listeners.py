"""Who is told what a run is doing, and what the verdict of a check is. Nobody is, unless someone asks for it for the length of a block, as the
plugin does.

Imports neither torch nor numpy, so that a listener need not either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any

SILENCE = 1.0
"""Seconds after which somebody who looks on is told how far a run has come: two without a word look like a hang."""

Hears = Callable[[str], None]
"""Called with what is under way, "recording the golden: noise run 3 of 4"; with "" when all of it has ended."""

Judges = Callable[[Any, Any, Any, Any], None]
"""Called after a `check` with its job, precision, path of golden, and report."""

_hears: ContextVar[Hears | None] = ContextVar("precheck_hears", default=None)
_judges: ContextVar[Judges | None] = ContextVar("precheck_judges", default=None)
_doing: ContextVar[tuple[str, ...]] = ContextVar("precheck_doing", default=())


@contextlib.contextmanager
def telling(hears: Hears) -> Iterator[None]:
    """Inside the block `hears` is told. It must not raise: what it raises, the verb does."""
    token = _hears.set(hears)
    try:
        yield
    finally:
        _hears.reset(token)


@contextlib.contextmanager
def doing(words: str) -> Iterator[None]:
    """Says what the block does; of blocks inside blocks all is said, the outermost first, and only its end."""
    hears, outer = _hears.get(), _doing.get()
    if hears is None:
        yield
        return
    token = _doing.set((*outer, words))
    hears(": ".join((*outer, words)))
    try:
        yield
    finally:
        _doing.reset(token)
        if not outer:
            hears("")


def otherwise(words: str) -> contextlib.AbstractContextManager[None]:
    """`doing`, where nobody has said yet what is under way."""
    return contextlib.nullcontext() if _doing.get() else doing(words)


class Progress:
    """Counts the ops of a run, or other things. If nothing was said for a while, it tells the listeners how many there were."""

    __slots__ = ("hears", "last", "ops", "outer", "what")

    def __init__(self, what: str = "op") -> None:
        self.hears, self.outer, self.ops, self.last, self.what = _hears.get(), _doing.get(), 0, monotonic(), what

    def op(self) -> None:
        self.ops += 1
        if self.hears is not None and self.outer and monotonic() - self.last >= SILENCE:
            self.last = monotonic()
            self.hears(f"{': '.join(self.outer)}, at {self.what} {self.ops}")


@contextlib.contextmanager
def judging(judges: Judges | None) -> Iterator[None]:
    """Inside the block `judges` is told of each check; None: nobody is."""
    token = _judges.set(judges)
    try:
        yield
    finally:
        _judges.reset(token)


def judged(job: Any, precision: Any, golden: Any, report: Any) -> None:
    """Says that a check has been made. Whoever hears of it may check again, and is told of nothing while doing so."""
    judges = _judges.get()
    if judges is not None:
        with judging(None):
            judges(job, precision, golden, report)
