"""A tenth frozen set of healthy kernels, third part: choices, images, lookups, pointwise. Written and committed before any was tried.

Two were mended, which were accused rightly: the gradient of a filter was added up in float16, place after place, and squares of
subnormal numbers are 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


@rewrite("largest three, the first of all in order", lambda x: x.topk(3, -1).values, shapes((4, 13)))
def first_in_order(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[-1] >= 3)
    return x.sort(-1, descending=True).values[:, :3]


def _kept(x: torch.Tensor) -> torch.Tensor:
    """Shares of the fewest columns that have seven tenths together, normalised again."""
    share = x.float().softmax(-1)
    held, places = share.sort(dim=-1, descending=True, stable=True)
    held = torch.where(held.cumsum(-1) - held < 0.7, held, 0.0)
    return (torch.zeros_like(share).scatter(-1, places, held) / held.sum(-1, keepdim=True)).to(x.dtype)


@rewrite("shares of the nucleus, by the share of those before", _kept, shapes((4, 12)))
def nucleus(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1])
    held, places = x.float().sort(dim=-1, descending=True, stable=True)
    powers = (held - held[:, :1]).exp()
    powers = powers / powers.sum(-1, keepdim=True)
    before = torch.cat([torch.zeros(len(x), 1), powers.cumsum(-1)[:, :-1]], -1)
    kept = powers.masked_fill(before >= 0.7, 0)
    return (kept / kept.sum(-1, keepdim=True)).gather(-1, places.argsort(-1)).to(x.dtype)


@rewrite("drawn place, by the largest of noise and score", lambda x, u: (x.float() + u.float()).argmax(-1), shapes((5, 11), (5, 11)))
def drawn_place(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == u.shape and x.shape[1])
    return (x.float() + u.float()).max(-1).indices


@rewrite("convolution of padded images, columns of windows", lambda x, w, b: F.conv2d(x.float(), w.float(), b.float(), padding=1).to(x.dtype),
         shapes((2, 3, 5, 6), (4, 3, 3, 3), (4,)))  # fmt: skip
def columns_of_windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.dim() == 4 and w.shape[1] == x.shape[1] and w.shape[2:] == (3, 3) and b.shape == w.shape[:1] and x.numel() and len(w))
    windows = F.pad(x.float(), (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    rows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)
    made = rows @ w.float().flatten(1).T + b.float()
    return made.unflatten(0, (len(x), *x.shape[2:])).permute(0, 3, 1, 2).to(x.dtype)


@rewrite("convolution of each channel, with what came before",
         lambda x, w: F.conv1d(F.pad(x.float(), (2, 0)), w.float()[:, None], groups=len(w)).to(x.dtype),
         shapes((2, 4, 9), (4, 3)))  # fmt: skip
def came_before(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and w.shape == (x.shape[1], 3) and x.numel())
    state, made, wide = torch.zeros(*x.shape[:2], 2), [], w.float()
    for place in range(x.shape[2]):
        state = torch.cat([state[..., -2:], x[..., place, None].float()], -1)
        made.append((state * wide).sum(-1))
    return torch.stack(made, -1).to(x.dtype)


@rewrite("largest of windows and their places, unfolded", lambda x: F.max_pool1d(x, 3, 2, return_indices=True), shapes((2, 3, 11)))
def unfolded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 3 and x.shape[2] >= 3)
    windows = x.unfold(2, 3, 2)
    places = windows.detach().float().nan_to_num(nan=math.inf, posinf=math.inf).argmax(-1) if not bool(x.isnan().any()) else windows.max(-1).indices
    return windows.gather(-1, places[..., None]).squeeze(-1), places + 2 * torch.arange(places.shape[-1])


@rewrite("means of windows with padding counted, by a product with a band", lambda x: F.avg_pool1d(x.float(), 3, 1, 1).to(x.dtype), shapes((2, 3, 8)))
def band(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel())
    wide = F.pad(x.float(), (1, 1))
    return ((wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]) / 3).to(x.dtype)


class _Resize(torch.autograd.Function):
    """Twice as many columns and one more, ends aligned; the way back is the product with the transpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 3 and x.numel())
        size = x.shape[2]
        place = torch.arange(2 * size + 1) * ((size - 1) / (2 * size))
        low = place.floor().long().clamp(0, size - 1)
        part = (place - low)[:, None]
        ends = F.one_hot(low, size) * (1 - part) + F.one_hot((low + 1).clamp(max=size - 1), size) * part
        ctx.save_for_backward(ends)
        high = (low + 1).clamp(max=size - 1)
        return (x.float()[..., low] * (1 - part[:, 0]) + x.float()[..., high] * part[:, 0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (ends,) = ctx.saved_tensors
        return (gradient.float() @ ends).to(gradient.dtype)


rewrite("columns between, ends aligned, the way back by a transpose",
        lambda x: F.interpolate(x.float(), size=2 * x.shape[2] + 1, mode="linear", align_corners=True).to(x.dtype),
        shapes((2, 3, 6)))(_Resize.apply)  # fmt: skip


@rewrite("every pixel twice, by repeating", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), shapes((2, 3, 4, 5)))
def repeated(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and x.numel())
    return x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).flatten(4).flatten(2, 3)


def _bags(table: torch.Tensor, weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return (table.float()[places] * weight.float()[..., None]).sum(1).to(table.dtype)


class _Bags(torch.autograd.Function):
    """Weighed sums of rows; the way back sorts the places and adds up what belongs to one row."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        need(table.dim() == 2 and places.dim() == 2 and weight.shape == places.shape and not bool(((places < 0) | (places >= len(table))).any()))
        ctx.save_for_backward(table, weight, places)
        return torch.einsum("bn,bnc->bc", weight.float(), table.float()[places]).to(table.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        table, weight, places = ctx.saved_tensors
        given = gradient.float()
        flat, order = places.flatten().sort(stable=True)
        rows = (weight.float()[..., None] * given[:, None]).flatten(0, 1)[order]
        dt = torch.zeros(table.shape).index_add(0, flat, rows)
        return dt.to(table.dtype), (table.float()[places] * given[:, None]).sum(-1).to(weight.dtype), None


rewrite("weighed bags, gradients by sorted places", _bags,
        lambda dtype: (*shapes((9, 5), (4, 3))(dtype), torch.randint(9, (4, 3), generator=torch.Generator().manual_seed(3))),
        )(_Bags.apply)  # fmt: skip


class _Gelu(torch.autograd.Function):
    """gelu by erf; the derivative is written out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * 0.5 * torch.special.erfc(-wide / math.sqrt(2))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        wide = ctx.saved_tensors[0].float()
        slope = 0.5 * torch.special.erfc(-wide / math.sqrt(2)) + wide * (-0.5 * wide * wide).exp() / math.sqrt(2 * math.pi)
        return (gradient.float() * slope).to(gradient.dtype)


rewrite("gelu, its derivative written out", lambda x: F.gelu(x.float()).to(x.dtype), shapes((5, 9)))(_Gelu.apply)


@rewrite("clamped swiglu, gate and value interleaved",
         lambda x: (F.silu(x.float()[..., ::2].clamp(max=2)) * (x.float()[..., 1::2].clamp(-2, 2) + 1)).to(x.dtype), shapes((4, 12)))  # fmt: skip
def interleaved(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 2))
    gate, value = x.float().unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)
    gate, value = gate.clamp(max=2), value.clamp(-2, 2)
    return (gate * gate.sigmoid() * (value + 1)).to(x.dtype)


@rewrite("logarithm of a sigmoid, by the smaller of two", lambda x: F.logsigmoid(x.float()).to(x.dtype), shapes((5, 8)))
def smaller(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return -torch.logaddexp(torch.zeros_like(wide), -wide).to(x.dtype)


@rewrite("length of a complex number, as the norm of two", lambda a, b: torch.complex(a.float(), b.float()).abs().to(a.dtype), shapes((4, 9), (4, 9)))
def norm_of_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)
    return torch.view_as_complex(torch.stack([a.float(), b.float()], -1)).abs().to(a.dtype)


@rewrite("rows of matrices multiplied, given back turned", lambda x, y: torch.einsum("bij,bkj->bik", x.float(), y.float()).to(x.dtype),
         shapes((3, 4, 7), (3, 5, 7)))  # fmt: skip
def given_turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and y.dim() == 3 and len(x) == len(y) and x.shape[2] == y.shape[2])
    return torch.bmm(y.float(), x.float().mT).to(x.dtype).mT
