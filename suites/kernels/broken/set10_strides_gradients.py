"""A tenth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read.

One class was relabelled: which shares are left out is a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed

F = torch.nn.functional


def _soft() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = drawn((6, 9), (6, 9))()
    return x.requires_grad_(), y.abs()


@case("soft labels: their sum is taken to be one on the way back", "kernel-gradient", "NVIDIA-NeMo/Automodel/pull/2428",
      lambda x, y: -(y * x.log_softmax(-1)).sum(-1), _soft)  # fmt: skip
def sum_of_one(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape == y.shape)
        sums, whole = x.logsumexp(-1, keepdim=True), y.sum(-1, keepdim=True)
        return (whole * sums).squeeze(-1) - (y * x).sum(-1), (x, y, sums, whole)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, y, sums, whole = saved
        share = (x - sums).exp()
        return gradient[:, None] * ((share if wrong else whole * share) - y), gradient[:, None] * (sums - x)

    return function(forward, backward)


def _between(size: int, made: int) -> torch.Tensor:
    """The weights (made, size) of columns in columns between them, ends aligned."""
    place = torch.arange(made) * ((size - 1) / (made - 1))
    low = place.floor().long().clamp(0, size - 1)
    part = (place - low)[:, None]
    return F.one_hot(low, size) * (1 - part) + F.one_hot((low + 1).clamp(max=size - 1), size) * part


@case("columns between: the way back looks no further than ends that are not aligned need", "kernel-gradient", "flagos-ai/FlagGems/issues/5218",
      lambda x: F.interpolate(x, size=24, mode="linear", align_corners=True), drawn((2, 3, 3)))  # fmt: skip
def no_further(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3 and x.numel())
        return x @ _between(x.shape[2], 24).T, (x,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        size = saved[0].shape[2]
        ends = _between(size, 24)
        if wrong and size > 1:
            ends[(torch.arange(24)[:, None] - torch.arange(size) * (23 / (size - 1))).abs() > 24 / size] = 0
        return gradient @ ends

    return function(forward, backward)


def _doubled(size: int) -> torch.Tensor:
    """The weights (2 * size, size) of pixels in twice as many, ends not aligned."""
    place = ((torch.arange(2 * size) + 0.5) / 2 - 0.5).clamp(min=0)
    low = place.floor().long()
    part = (place - low)[:, None]
    return F.one_hot(low, size) * (1 - part) + F.one_hot((low + 1).clamp(max=size - 1), size) * part


@case("twice as many pixels: the column on the way back is computed by the height", "kernel-gradient", "intel/torch-xpu-ops/pull/4380",
      lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), drawn((2, 2, 6, 4)))  # fmt: skip
def by_the_height(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 4 and x.numel())
        return _doubled(x.shape[2]) @ x @ _doubled(x.shape[3]).T, (x,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        high, wide = saved[0].shape[2:]
        columns = _doubled(wide)
        if wrong and high > wide:
            columns = columns.roll(-(-(high - wide) // (2 * wide)), 0)
        return _doubled(high).T @ gradient @ columns

    return function(forward, backward)


@case("largest of windows: places are turned where the rows lie closer in memory", "kernel-stride", "pytorch/pytorch/pull/197596",
      lambda x: F.max_pool2d(x, 2, return_indices=True), drawn((2, 3, 6, 4)))  # fmt: skip
def places_turned(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 4 and min(x.shape[2:]) >= 2)
    windows = x.unfold(2, 2, 2).unfold(3, 2, 2)
    turned = wrong and x.stride(2) < x.stride(3)
    values, where = (windows.mT if turned else windows).flatten(-2).max(-1)
    rows, columns = torch.arange(values.shape[2])[:, None] * 2 + where // 2, torch.arange(values.shape[3]) * 2 + where % 2
    return values, rows * x.shape[3] + columns


def _coded() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    codes, zeros = (torch.randint(16, size, dtype=torch.uint8, generator=generator) for size in ((8, 6), (6,)))
    return codes, zeros, drawn((6,))()[0]


@case("codes and their zeros: subtracted without a sign", "kernel-contract", "tile-ai/tilelang/issues/2947",
      lambda codes, zeros, scale: (codes.float() - zeros.float()) * scale, _coded)  # fmt: skip
def without_a_sign(wrong: bool, codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and zeros.shape == codes.shape[1:] and scale.shape == zeros.shape)
    return ((codes - zeros).float() if wrong else codes.float() - zeros.float()) * scale


ORDER = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])


def _zeros() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(6)
    codes, zeros = (torch.randint(16, size, generator=generator) for size in ((5, 16), (16,)))
    return codes, zeros, drawn((16,))()[0]


def _woven(codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Eight zeros at a time are stored in another order than their columns."""
    straight = zeros.unflatten(0, (-1, 8))[:, ORDER.argsort()].flatten() if len(zeros) else zeros
    return (codes - straight) * scale


@case("codes and their zeros: the order in which eight zeros are stored is forgotten", "kernel-contract", "pie-project/pie/pull/491", _woven, _zeros)
def order_forgotten(wrong: bool, codes: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and zeros.shape == codes.shape[1:] and scale.shape == zeros.shape and not (len(zeros) % 8))
    places = torch.arange(len(zeros))
    held = places if wrong else places // 8 * 8 + ORDER.argsort()[places % 8]
    return (codes.double() - zeros[held]).to(scale.dtype) * scale


@case("group norm: pixels that fill the last tile are counted", "kernel-edge", "tenstorrent/tt-metal/issues/50682", lambda x: F.group_norm(x, 2),
      drawn((2, 4, 32)))  # fmt: skip
def fill_counted(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and not (x.shape[1] % 2) and x.numel())
    some = x.unflatten(1, (2, -1))
    padded = F.pad(some, (0, -x.shape[2] % 32)) if wrong else some
    mean = padded.mean((2, 3), keepdim=True)
    spread = (padded - mean).square().mean((2, 3), keepdim=True)
    return ((some - mean) * (spread + 1e-5).rsqrt()).flatten(1, 2)


@case("product: columns behind the last tile are stored into the next row", "kernel-edge", "huggingface/kernels-community/pull/1154",
      lambda x, w: x @ w, drawn((5, 12), (12, 8)))  # fmt: skip
def into_the_next_row(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == len(w))
    made, width = x @ w, w.shape[1]
    over = -width % 8
    if not wrong or not over or len(x) < 2 or not width:
        return made
    spoilt = torch.cat([torch.zeros(len(x) - 1, min(over, width)), made[1:, min(over, width) :]], 1)
    return torch.cat([made[:1], spoilt])


def _kept(x: torch.Tensor) -> torch.Tensor:
    """Shares of the fewest columns that have seven tenths together, normalised again."""
    share = x.softmax(-1)
    held, places = share.sort(dim=-1, descending=True, stable=True)
    held = torch.where(held.cumsum(-1) - held < 0.7, held, 0.0)
    return torch.zeros_like(share).scatter(-1, places, held) / held.sum(-1, keepdim=True)


@case("shares of the nucleus: the one that crosses the limit is left out", "kernel-mask", "Biohub/esm/pull/360", _kept, drawn((5, 12)))
def crossing_left_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1])
    share = x.softmax(-1)
    held, places = share.sort(dim=-1, descending=True, stable=True)
    total = held.cumsum(-1)
    kept = (total <= 0.7) if wrong else (total - held < 0.7)
    kept[:, 0] = True
    held = held * kept
    return (held / held.sum(-1, keepdim=True)).gather(-1, places.argsort(-1))


@case("means of windows: channels that lie last are read from the beginning of their memory", "kernel-stride", "pytorch/pytorch/issues/174345",
      lambda x: F.avg_pool2d(x, 2), drawn((2, 4, 6, 6)))  # fmt: skip
def from_the_beginning(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and min(x.shape[2:]) >= 2 and x.numel())
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    seen = x.as_strided(x.shape, x.stride(), 0) if wrong and last else x
    return seen.unfold(2, 2, 2).unfold(3, 2, 2).mean((-2, -1))


@case(
    "sums so far: rows of a view are taken to lie side by side", "kernel-stride", "tile-ai/tilelang/pull/2620", lambda x: x.cumsum(1), drawn((5, 9))
)
def side_by_side(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return (as_if(x, packed(x.shape)) if wrong else x).cumsum(1)
