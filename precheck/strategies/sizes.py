"""Shapes, places in them, and magnitudes, as they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from precheck.observe.job import InputError

Draw = Callable[[SearchStrategy[Any]], Any]
Size = int | tuple[int, int]
Shape = Sequence[Size] | SearchStrategy[tuple[int, ...]]
SEEDS = st.integers(0, 2**16 - 1)
"""Of random content: enough to differ, few enough to shrink at once."""
EDITS = 3
"""Single elements, rows or channels that are singled out in one tensor, at most: what needs more is not one fault."""


def shapes(shape: Shape) -> SearchStrategy[tuple[int, ...]]:
    """Tuples of sizes: a number is fixed, a pair a range, and smaller is simpler. Raises InputError for what is no shape."""
    if isinstance(shape, SearchStrategy):
        return shape
    if isinstance(shape, (str, int)) or not isinstance(shape, Iterable):
        raise InputError(f"shape={shape!r}; pass sizes, each a number or a pair of least and greatest, as in shape=(2, (1, 64), 16)")
    return st.tuples(*(_sizes(size, shape) for size in shape))


def _sizes(size: Any, shape: Any) -> SearchStrategy[int]:
    least, most = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (least, most)) or not 1 <= least <= most:
        raise InputError(f"size {size!r} in shape={shape!r}; pass a whole number from 1, or a pair of them, the smaller first")
    return st.integers(least, most)


def dimensions(shape: Shape) -> int | None:
    """How many the shapes have, if that is known before one is drawn."""
    return None if isinstance(shape, SearchStrategy) else len(shape)


def places(shape: Sequence[int]) -> SearchStrategy[tuple[int, ...]]:
    """Indices of one element, the first being the simplest."""
    return st.tuples(*(st.integers(0, size - 1) for size in shape))


def exponents(least: float, most: float) -> SearchStrategy[int]:
    """Those of the powers of two from `least` to `most`, nearest to 2**0 first; there has to be one."""
    return st.integers(*bounds(least, most))


def bounds(least: float, most: float) -> tuple[int, int]:
    """The exponents of the smallest power of two from `least`, and of the greatest up to `most`."""
    mantissa, exponent = math.frexp(least)
    return (exponent - 1 if mantissa == 0.5 else exponent), math.frexp(most)[1] - 1
