"""Python's garbage collector passes over what was there before a block began.

A measurement makes objects by the ten thousand, so that collections of all generations fall into it. Each goes over every object of the process,
a quarter of a million once torch is imported: a tenth of a second, for objects that are as they were.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Inside, collections go over what the block makes. Afterwards all is as before: what a process has frozen itself stays frozen."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def spared(function: Function) -> Function:
    """A function all of which is such a block."""

    @functools.wraps(function)
    def collected_sparingly(*args: Any, **kwargs: Any) -> Any:
        with sparing():
            return function(*args, **kwargs)

    return collected_sparingly  # type: ignore[return-value]
