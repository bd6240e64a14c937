"""Python's calls, watched while a candidate runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def profiled(watch: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """`watch` is told of every call in the block, as a profiler is."""
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)
