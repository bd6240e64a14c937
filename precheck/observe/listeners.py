"""Who is told what a verb is doing: nobody, unless someone asks to be for the length of a block (as the plugin does).

Imports neither torch nor numpy, so that a listener need not either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Hears = Callable[[str], None]
"""Called with what is under way, "recording the golden: noise run 3 of 4"; with "" when all of it has ended."""

_hears: ContextVar[Hears | None] = ContextVar("precheck_hears", default=None)
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
