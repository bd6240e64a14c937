"""Strategies for padded batches (`padded`) and attention masks (`masks`). False elements are masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from precheck.observe.job import InputError
from precheck.strategies.sizes import EDITS, SEEDS, Draw, Shape, dimensions, places, shapes
from precheck.words import counted

KINDS = ("open", "padding", "causal", "random")
"""`open`: nothing is masked. `padding`: the last keys, another number of them for each of the batch. `causal`: no query sees keys after it.
`random`: half, but one key in each row stays."""


def padded(
    content: SearchStrategy[torch.Tensor],
    *,
    pad: float = 0,
    side: Literal["right", "left"] = "right",
    empty: bool = False,
) -> SearchStrategy[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of a batch drawn from `content`, (batch, length, ...), and a mask (batch, length) that is True where it is no padding.

    Each row has a length of its own, from 1 (0 if `empty`), and `pad` beyond it; rows shrink to no padding. For a model that
    takes keywords: `padded(...).map(lambda pair: {"input_ids": pair[0], "attention_mask": pair[1]})`.
    """
    if not isinstance(content, SearchStrategy):
        raise InputError(f"padded() was given a {type(content).__name__}; pass a strategy of tensors, as in padded(tokens(100, (4, 16)))")
    if side not in ("right", "left"):
        raise InputError(f"side={side!r}; pass 'right' or 'left', where the padding goes")
    return _padded(content, pad, side, empty)


@st.composite
def _padded(draw: Draw, content: SearchStrategy[torch.Tensor], pad: float, side: str, empty: bool) -> tuple[torch.Tensor, torch.Tensor]:
    batch = draw(content)
    if batch.dim() < 2:
        raise InputError(f"padded() was given a tensor of shape {tuple(batch.shape)}; it takes (batch, length, ...)")
    rows, length = batch.shape[:2]
    mask = _kept(draw, rows, length, empty=empty)
    if side == "left":
        mask = mask.flip(-1)
    padding = (~mask).view(rows, length, *[1] * (batch.dim() - 2))
    return batch.masked_fill(padding, pad), mask


def masks(
    shape: Shape,
    *,
    kinds: str | Sequence[str] = KINDS,
    empty_rows: bool = False,
    dtype: torch.dtype = torch.bool,
    fill: float | None = None,
) -> SearchStrategy[torch.Tensor]:
    """Attention masks of shape (batch, keys) or (..., queries, keys), which shrink to masking nothing.

    `kinds`: which of `open`, `padding`, `causal` (from two dimensions on), `random` are drawn. `empty_rows`: whether up to three rows may be masked
    whole; no row is otherwise. Boolean masks are True where attention goes. Those of a floating `dtype` are added to scores: 0 there, `fill`
    elsewhere (-inf if not given; torch.finfo(dtype).min is what many models take).
    """
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not names or any(name not in KINDS for name in names):
        raise InputError(f"kinds={kinds!r}; pass one or several of {', '.join(KINDS)}")
    if not isinstance(dtype, torch.dtype) or not (dtype is torch.bool or dtype.is_floating_point):
        raise InputError(f"dtype={dtype!r}; pass torch.bool, or a floating dtype for a mask that is added")
    if dtype is torch.bool and fill is not None:
        raise InputError(f"fill={fill!r} with a boolean mask, which has none; pass a floating dtype too, as in dtype=torch.float32")
    sizes, known = shapes(shape), dimensions(shape)
    if known == 0 or (known == 1 and "causal" in names and kinds is not KINDS):
        raise InputError(f"shape={shape!r} has {counted(known, 'dimension')}; pass (batch, keys) or (..., queries, keys)")
    return _masks(sizes, names, empty_rows, dtype, float("-inf") if fill is None else fill)


@st.composite
def _masks(
    draw: Draw, shape: SearchStrategy[tuple[int, ...]], kinds: tuple[str, ...], empty_rows: bool, dtype: torch.dtype, fill: float
) -> torch.Tensor:
    sizes = draw(shape)
    kind = draw(st.sampled_from([name for name in kinds if name != "causal" or len(sizes) > 1]))
    mask = torch.ones(sizes, dtype=torch.bool, device="cpu")
    if kind == "padding":
        batch = sizes[0] if len(sizes) > 1 else 1
        mask &= _kept(draw, batch, sizes[-1]).view(*sizes[:1], *[1] * (len(sizes) - 2), sizes[-1])
    elif kind == "causal":
        mask = mask.tril()
    elif kind == "random":
        generator = torch.Generator().manual_seed(draw(SEEDS))
        mask = torch.rand(sizes, generator=generator, device="cpu") < 0.5
        mask.scatter_(-1, torch.randint(sizes[-1], (*sizes[:-1], 1), generator=generator, device="cpu"), True)
    if empty_rows:
        for row in draw(st.lists(places(sizes[:-1]), max_size=EDITS, unique=True)):
            mask[row] = False
    return mask if dtype is torch.bool else torch.zeros(sizes, dtype=dtype, device="cpu").masked_fill(~mask, fill)


def _kept(draw: Draw, rows: int, length: int, *, empty: bool = False) -> torch.Tensor:
    """A mask of shape (rows, length) that is True up to a drawn length of each row."""
    most: Any = length if empty else length - 1
    padding = torch.tensor(draw(st.lists(st.integers(0, most), min_size=rows, max_size=rows)), device="cpu")
    return torch.arange(length, device="cpu") < (length - padding).unsqueeze(-1)
