"""Raises Python's recursion limit for the frames that hooks add, so that a deeply nested model that runs alone can be watched too.

A module call takes two frames of torch beside the module's own forward, and a third if the module has hooks. So a model that runs within the
recursion limit runs within four thirds of it under hooks. Observing the innermost op takes some frames more.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

OBSERVING = 200
"""Frames between a verb and the model, and between an op and the innermost function that observes it. At most 60 were counted."""

_lock, _users, _limits = threading.Lock(), 0, (0, 0)


@contextlib.contextmanager
def room() -> Iterator[None]:
    """Inside, the recursion limit is raised. May be nested, and used from any thread. A limit that the block sets itself stays."""
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
