"""Watches the Python calls that a candidate makes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def profiled(watch: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Calls `watch` for every call in the block, as a profiler."""
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
