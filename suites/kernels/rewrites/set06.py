"""A sixth frozen set of healthy kernels: written and committed before any of them was tried.

One was mended, since it was accused rightly: it took the exponential of scores that are masked, which may be infinite.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


@rewrite("mish by one exponential", lambda x: F.mish(x.float()).to(x.dtype), shapes((6, 20)))
def one_exponential(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    e = wide.clamp(max=20).exp()
    part = e * (e + 2)
    return (wide * part / (part + 2)).to(x.dtype)


def _sloped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = (torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]).float()
    slopes = 2.0 ** -(torch.arange(q.shape[0]) + 1.0)
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1)) + slopes[:, None, None] * apart
    return (scores.masked_fill(apart > 0, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with slopes, rows of four queries", _sloped, shapes(*[(3, 13, 8)] * 3))
def four_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape[:-1] == k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1] and q.shape[1])
    made = []
    for head in range(len(q)):
        rows, slope = [], 0.5 ** (head + 1)
        for begin in range(0, q.shape[1], 4):
            end = min(begin + 4, q.shape[1])
            place = torch.arange(begin, end)[:, None]
            keys = torch.arange(end)
            scores = torch.einsum("id,jd->ij", q[head, begin:end].float(), k[head, :end].float()) / math.sqrt(max(q.shape[-1], 1)) + slope * keys
            scores = scores.masked_fill(keys > place, -math.inf)
            weights = (scores - scores.detach().amax(-1, keepdim=True)).exp()
            rows.append(weights @ v[head, :end].float() / weights.sum(-1, keepdim=True))
        made.append(torch.cat(rows))
    return (torch.stack(made) if made else torch.zeros(v.shape)).to(q.dtype)


@rewrite("product in parts of the sum, added in pairs", lambda a, b: (a.float() @ b.float()).to(a.dtype), shapes((6, 96), (96, 5)))
def added_in_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape[-1] == len(b))
    parts = [one.float() @ two.float() for one, two in zip(a.split(16, -1), b.split(16), strict=True)]
    while len(parts) > 1:
        parts = [torch.add(*parts[number : number + 2]) if number + 1 < len(parts) else parts[number] for number in range(0, len(parts), 2)]
    return parts[0].to(a.dtype)


def _grouped(dtype: torch.dtype) -> tuple[Any, ...]:
    (x,) = shapes((24, 6))(dtype)
    return x, torch.tensor([3, 0, 0, 1, 5, 3, 3, 1, 0, 5, 5, 3, 0, 1, 1, 0, 3, 5, 0, 3, 1, 5, 0, 0])


def _means(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(6, x.shape[1]).index_add(0, ids, x.float())
    return (total / torch.bincount(ids, minlength=6).clamp(min=1)[:, None]).to(x.dtype)


@rewrite("means of segments, two of them empty, by a matrix", _means, _grouped)
def by_a_matrix(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(ids))
    member = (torch.arange(6)[:, None] == ids).float()
    spread = (member[..., None] * torch.where(member[..., None] > 0, x.float(), 0)).sum(1)
    return (spread / member.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)


@rewrite("cosines of rows, each side divided by its length first", lambda a, b: F.cosine_similarity(a.float(), b.float(), -1, 1e-4).to(a.dtype),
         shapes((7, 18), (7, 18)))  # fmt: skip
def divided_first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)
    one, two = a.float(), b.float()
    return (one / one.norm(dim=-1, keepdim=True).clamp(min=1e-4) * (two / two.norm(dim=-1, keepdim=True).clamp(min=1e-4))).sum(-1).to(a.dtype)


def _turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / max(half, 1))
    one, two = x[..., :half].float(), x[..., half : 2 * half].float()
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1).to(x.dtype)


@rewrite("halves turned, as complex numbers", _turned, shapes((2, 9, 12)))
def complex_halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turns = torch.polar(torch.ones(()), torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / max(half, 1)))
    made = torch.complex(x[..., :half].float(), x[..., half : 2 * half].float()) * turns
    return torch.cat([made.real, made.imag], -1).to(x.dtype)


@rewrite("kullback-leibler divergence of two rows of scores", lambda a, b: F.kl_div(a.float().log_softmax(-1), b.float().log_softmax(-1),
         reduction="none", log_target=True).sum(-1).to(a.dtype), shapes((6, 15), (6, 15)))  # fmt: skip
def of_scores(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)
    one, two = a.float() - a.float().logsumexp(-1, keepdim=True), b.float() - b.float().logsumexp(-1, keepdim=True)
    return (two.exp() * (two - one)).sum(-1).to(a.dtype)


@rewrite("pixels shuffled by two axes", lambda x: F.pixel_shuffle(x, 2), shapes((2, 8, 3, 5)))
def by_two_axes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and not (x.shape[1] % 4))
    apart = x.reshape(len(x), x.shape[1] // 4, 2, 2, *x.shape[2:])
    return apart.permute(0, 1, 4, 2, 5, 3).reshape(len(x), x.shape[1] // 4, 2 * x.shape[2], 2 * x.shape[3])


@rewrite("convolution by windows", lambda x, w, b: F.conv2d(x.float(), w.float(), b.float(), 2, 1).to(x.dtype),
         shapes((2, 3, 9, 8), (5, 3, 3, 3), (5,)))  # fmt: skip
def by_windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.dim() == 4 and x.shape[1] == w.shape[1] and len(w) == len(b) and x.numel() and w.numel())
    need(w.shape[2] <= x.shape[2] + 2 and w.shape[3] <= x.shape[3] + 2)
    windows = F.pad(x.float(), (1, 1, 1, 1)).unfold(2, w.shape[2], 2).unfold(3, w.shape[3], 2)
    return (torch.einsum("bihwpq,oipq->bohw", windows, w.float()) + b.float()[:, None, None]).to(x.dtype)


class _Sink(torch.autograd.Function):
    """A softmax with a score more, which gets a share and gives nothing; its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        need(x.shape[:-1] == sink.shape)
        wide, extra = x.float(), sink.float()[..., None]
        most = torch.maximum(wide.amax(-1, keepdim=True), extra) if x.shape[-1] else extra
        parts, more = (wide - most).exp(), (extra - most).exp()
        total = parts.sum(-1, keepdim=True) + more
        shares = parts / total
        ctx.save_for_backward(shares, more / total)
        ctx.dtypes = x.dtype, sink.dtype
        return shares.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares, more = ctx.saved_tensors
        given = gradient.float()
        inner = (given * shares).sum(-1, keepdim=True)
        return (shares * (given - inner)).to(ctx.dtypes[0]), (-more * inner)[..., 0].to(ctx.dtypes[1])


rewrite("softmax with a sink, by hand both ways", lambda x, s: torch.cat([x.float(), s.float()[..., None]], -1).softmax(-1)[..., :-1].to(x.dtype),
        shapes((3, 5, 11), (3, 5)))(_Sink.apply)  # fmt: skip


def _statistics(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    last = x.float().movedim(1, -1)
    return (((last - m.float()) / (v.float().exp() + 1e-3).sqrt()) * w.float() + b.float()).movedim(-1, 1).to(x.dtype)


@rewrite("batch norm of given statistics, as a factor and a shift", _statistics, shapes((3, 6, 7), (6,), (6,), (6,), (6,)))
def statistics_given(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 2 and not any(each.shape != x.shape[1:2] for each in (m, v, w, b)))
    size = (-1, *[1] * (x.dim() - 2))
    factor = w.float() * torch.rsqrt(v.float().exp() + 1e-3)
    return ((x.float() - m.float().view(size)) * factor.view(size) + b.float().view(size)).to(x.dtype)


@rewrite("distances of all pairs, squares of differences", lambda a, b: torch.cdist(a.float(), b.float(),
         compute_mode="donot_use_mm_for_euclid_dist").square().to(a.dtype), shapes((6, 9), (7, 9)))  # fmt: skip
def all_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[1])
    return (a.float()[:, None] - b.float()).square().sum(-1).to(a.dtype)
