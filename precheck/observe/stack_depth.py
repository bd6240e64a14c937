"""Room on Python's stack for what hooks add to it. A model nested as deeply as it can run alone can then be watched too.

A module call takes torch two frames beside the module's own forward, and a third where the module has hooks. So whatever nests within Python's
recursion limit does within four thirds of it under hooks, and what observes the innermost op takes some frames more.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

OBSERVING = 200
"""Frames between a verb and the model, and between an op and the innermost function that looks at it: 60 at most were counted."""

_lock, _users, _limits = threading.Lock(), 0, (0, 0)


@contextlib.contextmanager
def room() -> Iterator[None]:
    """Inside, the stack may be as much deeper as hooks make it. Nests, in any thread; a limit that the block sets itself stays."""
    global _users, _limits
    with _lock:
        _users += 1
        if _users == 1:
            before = sys.getrecursionlimit()
            _limits = before, before + before // 3 + OBSERVING
            sys.setrecursionlimit(_limits[1])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and sys.getrecursionlimit() == _limits[1]:
                sys.setrecursionlimit(_limits[0])
