"""Strategies for shapes, indices and powers of two, which the other strategies use."""

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
"""Seeds of random content: enough for variety, few enough to shrink quickly."""
EDITS = 3
"""The most elements, rows or channels of a tensor that get special values. A fault that needs more is not a single one."""


def shapes(shape: Shape) -> SearchStrategy[tuple[int, ...]]:
    """A strategy for tuples of sizes. A number is fixed, a pair is a range. Shrinks to small sizes. Raises InputError for an invalid shape."""
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
    """The number of dimensions, or None if it is not known before a draw."""
    return None if isinstance(shape, SearchStrategy) else len(shape)


def places(shape: Sequence[int]) -> SearchStrategy[tuple[int, ...]]:
    """A strategy for the index of an element. Shrinks to the first one."""
    return st.tuples(*(st.integers(0, size - 1) for size in shape))


def exponents(least: float, most: float) -> SearchStrategy[int]:
    """A strategy for the exponents of the powers of two from `least` to `most`, of which there must be one. Shrinks towards 0."""
    return st.integers(*bounds(least, most))


def bounds(least: float, most: float) -> tuple[int, int]:
    """The exponents of the smallest power of two that is at least `least`, and of the largest that is at most `most`."""
    mantissa, exponent = math.frexp(least)
    return (exponent - 1 if mantissa == 0.5 else exponent), math.frexp(most)[1] - 1
