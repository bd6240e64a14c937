"""The strategy `tokens`: token ids, or other whole numbers below a bound."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from precheck.observe.job import InputError
from precheck.strategies.sizes import EDITS, SEEDS, Draw, Shape, places, shapes

_CONTENTS = ("zeros", "constant", "ascending", "random")


def tokens(vocabulary: int, shape: Shape, *, dtype: torch.dtype = torch.int64) -> SearchStrategy[torch.Tensor]:
    """Whole numbers from 0 to `vocabulary` - 1, as (batch, length) or any other `shape`, which shrink to zeros and small shapes.

    All alike, ascending, or random, with up to three elements of their own. Raises InputError for arguments that are none.
    """
    if isinstance(vocabulary, bool) or not isinstance(vocabulary, int) or vocabulary < 1:
        raise InputError(f"vocabulary={vocabulary!r}; pass how many tokens there are, a whole number from 1")
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise InputError(f"dtype={dtype!r}; pass a dtype of whole numbers, as in dtype=torch.int64")
    if vocabulary - 1 > torch.iinfo(dtype).max:
        raise InputError(f"vocabulary={vocabulary} is more than {dtype} counts, which is up to {torch.iinfo(dtype).max}")
    return _drawn(vocabulary, shapes(shape), dtype)


@st.composite
def _drawn(draw: Draw, vocabulary: int, shape: SearchStrategy[tuple[int, ...]], dtype: torch.dtype) -> torch.Tensor:
    sizes, token = draw(shape), st.integers(0, vocabulary - 1)
    content = draw(st.sampled_from(_CONTENTS))
    values: Any = torch.full(sizes, draw(token) if content == "constant" else 0, device="cpu")
    if content == "ascending":
        values = torch.arange(values.numel(), device="cpu").remainder(vocabulary).view(sizes)
    elif content == "random":
        values = torch.randint(vocabulary, sizes, generator=torch.Generator().manual_seed(draw(SEEDS)), device="cpu")
    for place in draw(st.lists(places(sizes), max_size=EDITS, unique=True)):
        values[place] = draw(token)
    drawn: torch.Tensor = values.to(dtype)
    return drawn
