"""The seventh frozen set of healthy kernels, second part.

Four were mended, which were accused rightly: exponentials that overflow and leave a gradient of NaN, Inf less Inf, a view of nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _relative(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Scores of queries and keys, and of queries and the distance to a key. Shapes (length, size) twice, and (2 length - 1, size)."""
    apart = torch.arange(len(k)) - torch.arange(len(q))[:, None] + len(q) - 1
    return (q.float() @ k.float().mT + torch.einsum("id,ijd->ij", q.float(), table.float()[apart])).to(q.dtype)


@rewrite("relative positions, by a skew", _relative, shapes((6, 8), (6, 8), (11, 8)))
def skewed(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    length = len(q)
    need(length and q.shape == k.shape and table.shape == (2 * length - 1, q.shape[1]))
    against = q.float() @ table.float().mT
    places = F.pad(against, (0, 1)).flatten()[length - 1 : -1]
    return (q.float() @ k.float().mT + places.view(length, 2 * length - 1)[:, :length]).to(q.dtype)


def _state(x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A state space that is read at each step. Shapes (length, width), (length,), (length, size) twice."""
    rates = F.softplus(step.float())
    state, made = torch.zeros(x.shape[1], b.shape[1]), [torch.zeros(0, x.shape[1])]
    for now, rate, write, read in zip(x.float(), rates, b.float(), c.float(), strict=True):
        state = (-rate).exp() * state + torch.outer(rate * now, write)
        made.append((state @ read)[None])
    return torch.cat(made).to(x.dtype)


@rewrite("state space as a masked product", _state, shapes((10, 6), (10,), (10, 4), (10, 4)))
def masked_product(x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(step) == len(b) == len(c) and b.shape == c.shape)
    rates = F.softplus(step.float())
    sums = []  # of the rates between two steps, added up singly: a difference of sums so far loses digits
    for end in range(len(x)):
        sums.append(F.pad(rates[1 : end + 1].flip(0).cumsum(0).flip(0), (0, len(x) - end)))
    apart = torch.stack(sums) if sums else torch.zeros(0, 0)
    seen = torch.ones(len(x), len(x)).tril().bool()
    weights = torch.where(seen, (c.float() @ b.float().mT) * (-apart).exp() * rates, 0)
    return torch.where(seen[..., None], weights[..., None] * x.float()[None], 0).sum(1).to(x.dtype)


@rewrite("product as a sum of outer products", lambda a, b: (a.float() @ b.float()).to(a.dtype), shapes((7, 17), (17, 6)))
def outer_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b))
    total = torch.zeros(len(a), b.shape[1])
    for column, row in zip(a.float().unbind(1), b.float(), strict=True):
        total = total + torch.outer(column, row)
    return total.to(a.dtype)


@rewrite("likelihood of a Gaussian, by its precision", lambda m, y, s: F.gaussian_nll_loss(m.float(), y.float(), s.float().exp(), eps=1e-6,
         reduction="none").to(m.dtype), shapes((5, 9), (5, 9), (5, 9)))  # fmt: skip
def by_precision(m: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(m.shape == y.shape == s.shape)
    spread = s.float().exp()  # torch keeps its least variance out of the graph
    spread = spread + (1e-6 - spread.detach()).clamp(min=0)
    return (0.5 * (y.float() - m.float()).square() * (1 / spread) + 0.5 * spread.log()).to(m.dtype)


def _near(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (-0.05 * (a.float()[:, None] - b.float()).square().sum(-1)).exp().to(a.dtype)


@rewrite("nearness of all pairs, a column at a time", _near, shapes((6, 9), (8, 9)))
def column_at_a_time(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[1])
    total = torch.zeros(len(a), len(b))
    for one, two in zip(a.float().unbind(1), b.float().unbind(1), strict=True):
        apart = one[:, None] - two
        total = total + apart * apart
    return torch.exp(-0.05 * total).to(a.dtype)


def _opened(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1)) - 2
    return (scores.sigmoid() @ v.float()).to(q.dtype)


@rewrite("attention by sigmoids, in tiles of keys", _opened, shapes((2, 7, 8), (2, 19, 8), (2, 19, 6)))
def opened_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape[:-2] == k.shape[:-2] and k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1])
    total = torch.zeros(*q.shape[:-1], v.shape[-1])
    scaled = q.float() / math.sqrt(max(q.shape[-1], 1))
    for keys, values in zip(k.split(8, -2), v.split(8, -2), strict=True):
        scores = scaled @ keys.float().mT - 2
        small = (-scores.abs()).exp()
        total = total + torch.where(scores >= 0, 1, small) / (1 + small) @ values.float()
    return total.to(q.dtype)


@rewrite("windows put back, by index", lambda x: F.fold(x.float(), (6, 7), 3, padding=1, stride=2).to(x.dtype), shapes((2, 18, 12)))
def put_back(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and not (x.shape[1] % 9) and x.shape[2] == 12 and x.shape[1])
    down, across = torch.arange(3)[:, None] * 2, torch.arange(4)[None] * 2
    flat = torch.zeros(len(x), x.shape[1] // 9, 8 * 9)
    for row in range(3):
        for column in range(3):
            place = ((down + row) * 9 + across + column).flatten()
            flat = flat.index_add(-1, place, x[:, row * 3 + column :: 9].float())
    return flat.view(len(x), x.shape[1] // 9, 8, 9)[:, :, 1:7, 1:8].to(x.dtype)


def _overlap(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    shares, wanted = logits.float().sigmoid(), wanted.float().sigmoid()
    return (1 - (2 * (shares * wanted).sum(-1) + 1) / (shares.sum(-1) + wanted.sum(-1) + 1)).to(logits.dtype)


@rewrite("overlap of two maps, in one pass", _overlap, shapes((4, 23), (4, 23)))
def one_pass(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    need(logits.shape == wanted.shape)
    both, either = torch.ones(logits.shape[:-1]), torch.ones(logits.shape[:-1])
    for one, two in zip(logits.float().unbind(-1), wanted.float().unbind(-1), strict=True):
        first, second = torch.sigmoid(one), torch.sigmoid(two)
        both, either = both + 2 * first * second, either + first + second
    return ((either - both) / either).to(logits.dtype)


class _Logs(torch.autograd.Function):
    """Logarithms of shares; the gradient by hand, from what was saved in the result's format."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        most = wide.amax(-1, keepdim=True) if x.shape[-1] else wide
        logs = wide - most - (wide - most).exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(logs)
        ctx.dtype = x.dtype
        return logs.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (logs,) = ctx.saved_tensors
        given = gradient.float()
        return (given - logs.exp() * given.sum(-1, keepdim=True)).to(ctx.dtype)


rewrite("log softmax, its gradient from its result", lambda x: x.float().log_softmax(-1).to(x.dtype), shapes((3, 5, 14)))(_Logs.apply)


@rewrite("leaky relu, as the larger of two", lambda x: F.leaky_relu(x.float(), 0.1).to(x.dtype), shapes((6, 20)))
def larger_of_two(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.maximum(wide, 0.1 * wide).to(x.dtype)
