"""The ninth frozen set of healthy kernels, third part: choices and whole numbers, sums, convolutions, formats of few bits.

One was taken out, which was accused rightly: a convolution by a transform spreads NaN over its row.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


@rewrite("the largest three and their places, by sorting", lambda x: tuple(x.topk(3, -1)), shapes((6, 13)))
def by_sorting(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() and x.shape[-1] >= 3)
    order = x.detach().sort(dim=-1, descending=True, stable=True).indices[..., :3]
    return x.gather(-1, order), order


@rewrite("place of the largest, by comparing", lambda x: x.argmax(-1), shapes((6, 11)))
def by_comparing(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    same = (x == x.amax(-1, keepdim=True)) | x.isnan()
    return torch.where(same, torch.arange(x.shape[-1]), x.shape[-1]).amin(-1)


@rewrite("pairs' largest and their places, from both ends", lambda x: F.max_pool1d(x, 2, return_indices=True), shapes((2, 3, 10)))
def both_ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 3 and x.shape[2] >= 2)
    whole = x.shape[2] // 2 * 2
    one, two = x[..., 0:whole:2], x[..., 1:whole:2]
    second = (two > one) | two.isnan()
    return torch.where(second, two, one), torch.arange(0, whole, 2) + second


@rewrite("how often each number occurs, by comparing", lambda at: torch.bincount(at, minlength=9),
         lambda dtype: (torch.randint(0, 9, (40,), generator=torch.Generator().manual_seed(3)),))  # fmt: skip
def occurs(at: torch.Tensor) -> torch.Tensor:
    need(at.dim() == 1 and (not (len(at) and (at.min() < 0))))
    size = max(9, int(at.max()) + 1) if len(at) else 9
    return (at[:, None] == torch.arange(size)).sum(0)


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    """Scores of the fewest that have 0.85 of the share; the others are lost."""
    held, order = x.float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    lost = held.cumsum(-1) - held > 0.85
    return x.masked_fill(torch.zeros_like(lost).scatter(-1, order, lost), -torch.inf)


@rewrite("the fewest that have most of the share, by a threshold", _nucleus, shapes((5, 12)))
def threshold(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1])
    order = x.detach().float().argsort(dim=-1, descending=True, stable=True)
    ranked = x.detach().float().gather(-1, order)
    powers = (ranked - ranked[:, :1]).exp()
    before = F.pad(powers.cumsum(-1)[:, :-1], (1, 0))
    lost = torch.empty_like(order, dtype=torch.bool).scatter_(-1, order, before > 0.85 * powers.sum(-1, keepdim=True))
    return torch.where(lost, torch.full_like(x, -torch.inf), x)


def _embedded(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table, padding_idx=0)


class _Embedded(torch.autograd.Function):
    """Rows of a table, of which the first gets no gradient; the others' are added up by a matrix of zeros and ones, in float32."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        need(table.dim() == 2 and len(table))
        ctx.save_for_backward(ids)
        ctx.like = table.shape, table.dtype
        return table.index_select(0, ids.reshape(-1)).view(*ids.shape, table.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (ids,), (shape, dtype) = ctx.saved_tensors, ctx.like
        flat = ids.reshape(-1)
        named = (torch.arange(shape[0])[:, None] == flat) & (flat != 0)
        return None, (named.float() @ gradient.reshape(len(flat), shape[1]).float()).to(dtype)


rewrite("embedding with a row that learns nothing, by a matrix", _embedded, lambda dtype: (
    torch.randint(0, 8, (4, 5), generator=torch.Generator().manual_seed(3)), *shapes((8, 6))(dtype)))(_Embedded.apply)  # fmt: skip


@rewrite("running logarithm of a sum of powers, by halves", lambda x: x.float().logcumsumexp(-1).to(x.dtype), shapes((5, 21)))
def by_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())

    def run(part: torch.Tensor) -> torch.Tensor:
        if part.shape[-1] < 2:
            return part
        one, two = (run(each) for each in part.tensor_split(2, -1))
        return torch.cat([one, torch.logaddexp(one[..., -1:], two)], -1)

    return run(x.float()).to(x.dtype)


@rewrite("product with a share of another, four sums in float64",
         lambda c, a, b: torch.addmm(c.float(), a.float(), b.float(), beta=0.5, alpha=2.0).to(c.dtype), shapes((6, 5), (6, 29), (29, 5)))  # fmt: skip
def four_sums(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(c.dim() == a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and c.shape == (a.shape[0], b.shape[1]))
    parts = [a[:, lane::4].double() @ b[lane::4].double() for lane in range(4)]
    return (0.5 * c.double() + 2 * ((parts[0] + parts[1]) + (parts[2] + parts[3]))).to(c.dtype)


@rewrite("convolution with three taps, four products for two places (Winograd)",
         lambda x, w: F.conv1d(x.float(), w.float()).to(x.dtype), shapes((2, 4, 11), (5, 4, 3)))  # fmt: skip
def four_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and w.dim() == 3 and x.shape[1] == w.shape[1] and w.shape[2] == 3 and x.shape[2] >= 3 and x.shape[1])
    places = x.shape[2] - 2
    d = F.pad(x.float(), (0, places % 2)).unfold(2, 4, 2)
    g = w.float()
    taps = torch.stack([g[..., 0], (g[..., 0] + g[..., 1] + g[..., 2]) / 2, (g[..., 0] - g[..., 1] + g[..., 2]) / 2, g[..., 2]], -1)
    seen = torch.stack([d[..., 0] - d[..., 2], d[..., 1] + d[..., 2], d[..., 2] - d[..., 1], d[..., 1] - d[..., 3]], -1)
    m = torch.einsum("bcpt,oct->bopt", seen, taps)
    made = torch.stack([m[..., 0] + m[..., 1] + m[..., 2], m[..., 1] - m[..., 2] - m[..., 3]], -1)
    return made.flatten(-2)[..., :places].to(x.dtype)


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """Blocks of four with a scale that is a power of two, in eight bits and back."""
    wide = x.detach().float().unflatten(-1, (-1, 4))
    scale = 2.0 ** (wide.abs().amax(-1, keepdim=True).clamp(min=1e-6).frexp().exponent - 7)
    return ((wide / scale).round() * scale).flatten(-2).to(x.dtype)


@rewrite("blocks in eight bits and back, by the bits of the exponent", _blocks, shapes((5, 12)))
def by_exponents(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 4) and x.numel())
    wide = x.detach().float().reshape(*x.shape[:-1], -1, 4)
    exponent = (wide.abs().amax(-1, keepdim=True).clamp(min=1e-6).view(torch.int32) >> 23) - 133
    return torch.ldexp(torch.ldexp(wide, -exponent).round(), exponent).reshape(x.shape).to(x.dtype)


def _routed(x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row to the better of three experts, and how many rows each got."""
    shares = (x.float() @ gate.float().T).softmax(-1)
    share, to = shares.max(-1)
    return (torch.einsum("ri,rio->ro", x.float(), w.float()[to]) * share[:, None]).to(x.dtype), torch.bincount(to, minlength=len(gate))


@rewrite("rows to the best of experts, sorted by expert", _routed, shapes((9, 5), (3, 5, 4), (3, 5)))
def sorted_by_expert(x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and w.dim() == 3 and gate.dim() == 2 and len(w) == len(gate) and x.shape[1] == w.shape[1] and gate.shape[1] == x.shape[1])
    need(len(gate))
    scores = x.float() @ gate.float().T
    best, to = scores.max(-1)
    order = to.argsort(stable=True)
    counts = torch.zeros(len(w), dtype=torch.int64).scatter_add_(0, to, torch.ones_like(to))
    parts = [some.float() @ each.float() for some, each in zip(x[order].split(counts.tolist()), w, strict=True)]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return (torch.cat(parts)[back] * (best - scores.logsumexp(-1)).exp()[:, None]).to(x.dtype), counts


@rewrite("averages that fade, by a matrix", lambda x: functools.reduce(
    lambda made, row: [*made, 0.8 * made[-1] + 0.2 * row], x.float()[1:], [x.float()[0]])[-1].to(x.dtype), shapes((9, 5)))  # fmt: skip
def by_matrix(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x))
    powers = 0.8 ** torch.arange(len(x) - 1, -1, -1).float() * 0.2
    powers = torch.cat([powers[:1] * 5, powers[1:]])
    return (powers @ x.float()).to(x.dtype)
