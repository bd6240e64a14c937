"""A tenth frozen set of healthy kernels, second part: products, losses, choices, images, lookups. Written and committed before any was tried.

One was mended, which was accused rightly: each part of the classes added to a gradient in bfloat16.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _with(*sizes: tuple[int, ...], most: int, shape: tuple[int, ...]) -> Any:
    """Normal numbers of these shapes, and whole numbers below `most`."""

    def make(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return (*shapes(*sizes)(dtype), torch.randint(most, shape, generator=torch.Generator().manual_seed(3)))

    return make


@rewrite("logarithms of sums so far, blocks of six with a carry", lambda x: x.float().logcumsumexp(-1).to(x.dtype), shapes((3, 14)))
def carried(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made, carry = [x[:, :0].float()], torch.full((len(x), 1), -math.inf)
    for some in x.float().split(6, -1):
        here = torch.logaddexp(some.logcumsumexp(-1), carry)
        carry = here[:, -1:] if here.shape[-1] else carry
        made.append(here)
    return torch.cat(made, -1).to(x.dtype)


def _recurrence(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(x)), [x[:, :0].float()]
    for place in range(x.shape[1]):
        state = state * a[:, place].float().sigmoid() + x[:, place].float()
        made.append(state[:, None])
    return torch.cat(made, 1).to(x.dtype)


@rewrite("first-order recurrence, by doubling", _recurrence, shapes((3, 13), (3, 13)))
def by_doubling(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == a.shape)
    held, fade, step = x.float(), a.float().sigmoid(), 1
    while step < x.shape[1]:
        held = torch.cat([held[:, :step], held[:, step:] + fade[:, step:] * held[:, :-step]], 1)
        fade = torch.cat([fade[:, :step], fade[:, step:] * fade[:, :-step]], 1)
        step *= 2
    return held.to(x.dtype)


def _means(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    rows = [x.float()[place == each].mean(0, keepdim=True) if bool((place == each).any()) else torch.zeros(1, x.shape[1]) for each in range(4)]
    return torch.cat(rows).to(x.dtype)


@rewrite("means of segments, added at their places", _means, _with((9, 5), most=4, shape=(9,)))
def at_their_places(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and place.shape == x.shape[:1] and not bool(((place < 0) | (place > 3)).any()))
    total = torch.zeros(4, x.shape[1]).index_add(0, place, x.float())
    return (total / torch.bincount(place, minlength=4).clamp(min=1)[:, None]).to(x.dtype)


def _largest(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    rows = [x[place == each].amax(0, keepdim=True) if bool((place == each).any()) else torch.full((1, x.shape[1]), -math.inf) for each in range(3)]
    return torch.cat([each.to(x.dtype) for each in rows])


@rewrite("largest of segments, by a reduction at their places", _largest, _with((8, 4), most=3, shape=(8,)))
def reduced(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and place.shape == x.shape[:1] and not bool(((place < 0) | (place > 2)).any()))
    return torch.full((3, x.shape[1]), -math.inf, dtype=x.dtype).scatter_reduce(0, place[:, None].expand(x.shape), x, "amax", include_self=False)


@rewrite("product, five parts of the sum in a float32 workspace", lambda x, w: (x.float() @ w.float()).to(x.dtype), shapes((5, 23), (23, 6)))
def workspace(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == len(w))
    held = torch.zeros(5, len(x), w.shape[1])
    held = held + torch.stack([a.float() @ b.float() for a, b in zip(x.tensor_split(5, 1), w.tensor_split(5, 0), strict=True)])
    return held.sum(0).to(x.dtype)


def _low_rank(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x.float() @ w.float().T + 0.5 * (x.float() @ a.float().T) @ b.float().T).to(x.dtype)


@rewrite("linear with an adapter, one product of both", _low_rank, shapes((5, 12), (7, 12), (3, 12), (7, 3)))
def one_product(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and a.dim() == 2 and w.shape[1] == x.shape[1] and a.shape[1] == x.shape[1] and b.shape == (len(w), len(a)))
    both = x.float() @ torch.cat([w.float(), a.float()]).T
    return (both[:, : len(w)] + 0.5 * both[:, len(w) :] @ b.float().T).to(x.dtype)


def _levels(x: torch.Tensor, scale: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """A product with codes from 0 to 15 whose zero is 8; each group of four rows of codes has a scale."""
    return (x.float() @ ((codes.float() - 8) * scale.float().repeat_interleave(4, 0))).to(x.dtype)


@rewrite("product with codes of four bits, a group at a time and scaled afterwards", _levels, _with((5, 12), (3, 6), most=16, shape=(12, 6)))
def afterwards(x: torch.Tensor, scale: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and codes.dim() == 2 and x.shape[1] == len(codes) and len(codes) == 4 * len(scale) and scale.shape[1:] == codes.shape[1:])
    total = torch.zeros(len(x), codes.shape[1])
    for group in range(len(scale)):
        some, here = x[:, 4 * group : 4 * group + 4].float(), codes[4 * group : 4 * group + 4].float()
        total = total + (some @ here - 8 * some.sum(-1, keepdim=True)) * scale[group].float()
    return total.to(x.dtype)


@rewrite("product of complex numbers, four real ones",
         lambda a, b, c, d: torch.view_as_real(torch.complex(a.float(), b.float()) @ torch.complex(c.float(), d.float())).to(a.dtype),
         shapes((4, 9), (4, 9), (9, 5), (9, 5)))  # fmt: skip
def four_real(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape and c.dim() == 2 and c.shape == d.shape and a.shape[1] == len(c))
    one, two, three, four = (each.float() for each in (a, b, c, d))
    return torch.stack([one @ three - two @ four, one @ four + two @ three], -1).to(a.dtype)


class _Soft(torch.autograd.Function):
    """Cross entropy with soft labels of any sum; its gradient is made in the same pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape == y.shape)
        wide, soft = x.float(), y.float()
        sums, whole = wide.logsumexp(-1, keepdim=True), soft.sum(-1, keepdim=True)
        ctx.save_for_backward(whole * (wide - sums).exp() - soft, sums - wide)
        return (whole * sums - (soft * wide).sum(-1, keepdim=True)).squeeze(-1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dx, dy = ctx.saved_tensors
        given = gradient.float()[:, None]
        return (given * dx).to(gradient.dtype), (given * dy).to(gradient.dtype)


rewrite("cross entropy with soft labels, gradients in the same pass",
        lambda x, y: -(y.float() * x.float().log_softmax(-1)).sum(-1).to(x.dtype), shapes((5, 11), (5, 11)))(_Soft.apply)  # fmt: skip


def _linear_loss(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float() @ w.float().T, y, reduction="none").to(x.dtype)


@rewrite("linear and cross entropy, six classes at a time", _linear_loss, _with((5, 8), (14, 8), most=14, shape=(5,)))
def six_classes(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1] or y.shape != x.shape[:1] or not len(w) or bool(((y < 0) | (y >= len(w))).any()):
        raise ValueError("a class for each row is needed")
    wide, weights = x.float(), w.float()
    sums = functools.reduce(torch.logaddexp, [(wide @ some.T).logsumexp(-1) for some in weights.split(6)])
    return (sums - (wide * weights[y]).sum(-1)).to(x.dtype)


@rewrite(
    "smooth l1, by what is cut off",
    lambda x, y: F.smooth_l1_loss(x.float(), y.float(), reduction="none", beta=0.5).to(x.dtype),
    shapes((4, 9), (4, 9)),
)
def cut_off(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = (x.float() - y.float()).abs()
    return torch.where(apart < 0.5, apart.square(), apart - 0.25).to(x.dtype)


@rewrite("hinge of cosines, rows divided by their lengths first",
         lambda x, y: (1 - F.cosine_similarity(x.float(), y.float(), eps=1e-6)).clamp(min=0.2).to(x.dtype), shapes((5, 10), (5, 10)))  # fmt: skip
def lengths_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    one, two = (each.float() / each.float().norm(dim=-1, keepdim=True).clamp(min=1e-6) for each in (x, y))
    return (1 - (one * two).sum(-1)).clamp(min=0.2).to(x.dtype)
