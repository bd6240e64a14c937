"""The strategy `tensors`: floating tensors with drawn magnitude, outlier channels, degenerate rows, single elements, dtype and layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from precheck import formats
from precheck.observe.job import InputError
from precheck.strategies import layouts
from precheck.strategies.sizes import EDITS, SEEDS, Draw, Shape, bounds, dimensions, exponents, places, shapes

REALISTIC = (formats.FP16.min_normal, 2.0**15)
"""The range of powers of two that every precision stores with full precision: float16's normal numbers."""
_DEVIATIONS = 4.0  # standard deviations at which normal numbers are cut off; one in 16 000 lies beyond
_CONTENTS = ("zeros", "constant", "normal")
_ROWS = ("zeros", "constant", "one-hot", "duplicate")


@dataclasses.dataclass(frozen=True)
class _Wanted:
    shape: SearchStrategy[tuple[int, ...]]
    dtypes: tuple[torch.dtype, ...]
    magnitude: float | tuple[float, float] | None
    outliers: float
    degenerate: bool
    layouts: tuple[str, ...]
    layout: Any  # as the user wrote it


def tensors(
    shape: Shape,
    *,
    dtype: torch.dtype | Sequence[torch.dtype] = torch.float32,
    magnitude: float | tuple[float, float] | None = None,
    outliers: float = 1.0,
    degenerate: bool = True,
    layout: str | Sequence[str] = "contiguous",
) -> SearchStrategy[torch.Tensor]:
    """Floating tensors that shrink to zeros, small shapes, contiguous memory and a magnitude of 1.

    `shape`: sizes, each a number or a pair of least and greatest, or a strategy of tuples. `dtype`: one floating dtype or several. `magnitude`:
    what no element exceeds but outliers. It is a number, or the pair between which powers of two are drawn. By default it is 2**-14 to 2**15, as
    far as the dtype reaches. `outliers`: by how much, at most, up to three channels (last dimension) are larger, in powers of two, as far as the
    dtype reaches. `degenerate`: whether rows may be zero, constant, one-hot or copies of another. `layout`: one of `LAYOUTS`, several, or "any".

    Raises InputError for what is none of these.
    """
    dtypes = tuple(dtype) if isinstance(dtype, (tuple, list)) else (dtype,)
    for each in dtypes:
        _checked(each, magnitude)
    if isinstance(outliers, bool) or not isinstance(outliers, (int, float)) or not 1 <= outliers < math.inf:
        raise InputError(f"outliers={outliers!r}; pass how many times larger a channel may be, from 1 (none)")
    sizes, names = shapes(shape), layouts.chosen(layout)
    known = dimensions(shape)
    if known is not None:
        layouts.fitting(names, known, layout)
    return _drawn(_Wanted(sizes, dtypes, magnitude, outliers, degenerate, names, layout))


def _checked(dtype: Any, magnitude: Any) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype={dtype!r}; pass a floating dtype, as in dtype=torch.float32 (tokens() draws whole numbers)")
    try:
        top = formats.of_dtype(dtype).max
    except ValueError as error:
        raise InputError(f"dtype={dtype!r}: {error}") from None
    if magnitude is None:
        return
    pair = magnitude if isinstance(magnitude, tuple) and len(magnitude) == 2 else (magnitude, magnitude)
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) and 0 < each < math.inf for each in pair):
        raise InputError(f"magnitude={magnitude!r}; pass a positive number, or a pair of them, the smaller first")
    least, most = pair
    if most > top:
        raise InputError(f"magnitude={magnitude!r} is more than {dtype} holds, which is {top:g}")
    if isinstance(magnitude, tuple) and bounds(least, most)[0] > bounds(least, most)[1]:
        raise InputError(f"magnitude={magnitude!r}: no power of two lies between these; pass the smaller first, or a single number")


@st.composite
def _drawn(draw: Draw, wanted: _Wanted) -> torch.Tensor:
    shape, dtype = draw(wanted.shape), draw(st.sampled_from(wanted.dtypes))
    fmt = formats.of_dtype(dtype)
    least, most = _range(wanted.magnitude, fmt)
    size = float(most) if isinstance(wanted.magnitude, (int, float)) else 2.0 ** draw(exponents(least, most))
    values = _filled(draw, shape, size)
    if shape:
        _with_outliers(draw, values, min(wanted.outliers, fmt.max / size))
        if wanted.degenerate and len(shape) > 1:
            _with_rows(draw, values, size)
        _with_elements(draw, values, least, most)
    fitting = layouts.fitting(wanted.layouts, len(shape), wanted.layout)
    return layouts.laid(values.to(dtype), draw(st.sampled_from(fitting)))


def _range(magnitude: float | tuple[float, float] | None, fmt: formats.Format) -> tuple[float, float]:
    if magnitude is None:
        return max(REALISTIC[0], fmt.min_normal), min(REALISTIC[1], fmt.max)
    return magnitude if isinstance(magnitude, tuple) else (magnitude, magnitude)


def _filled(draw: Draw, shape: tuple[int, ...], size: float) -> torch.Tensor:
    """Draws the content in float64, which holds all numbers of the other formats."""
    content = draw(st.sampled_from(_CONTENTS))
    if content == "normal":
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(draw(SEEDS)), dtype=torch.float64, device="cpu")
        return noise.div_(_DEVIATIONS).clamp_(-1, 1).mul_(size)
    return torch.full(shape, size if content == "constant" else 0.0, dtype=torch.float64, device="cpu")


def _with_outliers(draw: Draw, values: torch.Tensor, factor: float) -> None:
    if factor >= 2:
        for channel in draw(st.lists(st.integers(0, values.shape[-1] - 1), max_size=EDITS, unique=True)):
            values[..., channel] *= 2.0 ** draw(exponents(2.0, factor))


def _with_rows(draw: Draw, values: torch.Tensor, size: float) -> None:
    rows = values.view(-1, values.shape[-1])
    for row in draw(st.lists(st.integers(0, len(rows) - 1), max_size=EDITS, unique=True)):
        kind = draw(st.sampled_from(_ROWS))
        rows[row] = rows[0].clone() if kind == "duplicate" else size if kind == "constant" else 0.0
        if kind == "one-hot":
            rows[row, draw(st.integers(0, values.shape[-1] - 1))] = size


def _with_elements(draw: Draw, values: torch.Tensor, least: float, most: float) -> None:
    """Sets a few single elements to magnitudes of their own, or to the fixed magnitude if one was given."""
    for place in draw(st.lists(places(values.shape), max_size=EDITS, unique=True)):
        size = most if least == most else 2.0 ** draw(exponents(least, most))
        values[place] = -size if draw(st.booleans()) else size
