"""A fifth frozen set of healthy kernels: written and committed before any of them was tried.

Five were mended, since they were accused rightly: elu's two sides had no derivative at 0, products with zeros spread the NaN of one weight, the
gradients of what is largest so far and of a transposed convolution were added up in the input's format, and rows of zeros had another least length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


@rewrite("elu by what is above and below zero", lambda x: F.elu(x.float()).to(x.dtype), shapes((6, 20)))
def both_sides(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.where(wide < 0, torch.expm1(wide.clamp(max=0)), wide).to(x.dtype)


@rewrite("hard swish by its pieces", lambda x: F.hardswish(x.float()).to(x.dtype), shapes((6, 20)))
def pieces(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.where(wide <= -3, 0, torch.where(wide >= 3, wide, wide * (wide + 3) / 6)).to(x.dtype)


@rewrite("logarithm of a sigmoid by its smaller half", lambda x: F.logsigmoid(x.float()).to(x.dtype), shapes((6, 20)))
def smaller_half(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (torch.minimum(wide, torch.zeros_like(wide)) - torch.log1p(torch.exp(-wide.abs()))).to(x.dtype)


def _banded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1))
    return (scores.masked_fill((apart < 0) | (apart > 2), -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("a window of three keys, by diagonals", _banded, shapes(*[(2, 11, 8)] * 3))
def diagonals(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape[:-1] == k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1])
    length = q.shape[-2]
    scores, values = [], []
    for back in range(3):
        shifted = F.pad(k.float(), (0, 0, back, 0))[..., :length, :]
        score = (q.float() * shifted).sum(-1) / math.sqrt(max(q.shape[-1], 1))
        scores.append(score.masked_fill(torch.arange(length) < back, -math.inf))
        values.append(F.pad(v.float(), (0, 0, back, 0))[..., :length, :])
    weights = torch.stack(scores, -1).softmax(-1)
    return torch.stack(values, -1).mul(weights[..., None, :]).sum(-1).to(q.dtype)


@rewrite("a transposed convolution, a tap at a time", lambda x, w: F.conv_transpose1d(x.float(), w.float(), stride=2).to(x.dtype),
         shapes((2, 4, 9), (4, 3, 3)))  # fmt: skip
def by_taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape[1] == len(w) and x.shape[-1] and w.shape[-1])
    length = 2 * (x.shape[-1] - 1) + w.shape[-1]
    wide, taps, total = x.float(), w.float(), torch.zeros(len(x), w.shape[1], length)
    for tap in range(w.shape[-1]):
        made = torch.einsum("bil,io->bol", wide, taps[..., tap])
        spread = torch.zeros_like(total)
        spread[..., tap : tap + 2 * x.shape[-1] - 1 : 2] = made
        total = total + spread
    return total.to(x.dtype)


@rewrite("means of windows, one place after the other", lambda x: F.avg_pool1d(x.float(), 3, 1).to(x.dtype), shapes((2, 4, 15)))
def places(x: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] >= 3)
    wide, length = x.float(), x.shape[-1] - 2
    return ((wide[..., :length] + wide[..., 1 : 1 + length] + wide[..., 2:]) / 3).to(x.dtype)


@rewrite("local response norm, by windows of squares",
         lambda x: F.local_response_norm(x.float(), 3, alpha=0.3, beta=0.75, k=1.0).to(x.dtype), shapes((2, 7, 6, 5)))  # fmt: skip
def windows(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    squares = F.pad(wide.square(), (0, 0, 0, 0, 1, 1))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    return (wide / torch.exp(0.75 * torch.log1p(0.1 * total))).to(x.dtype)


@rewrite("cosine similarity of normalised rows", lambda a, b: F.cosine_similarity(a.float(), b.float(), dim=-1, eps=1e-12).to(a.dtype),
         shapes((6, 24), (6, 24)))  # fmt: skip
def normalised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (F.normalize(a.float(), dim=-1) * F.normalize(b.float(), dim=-1)).sum(-1).to(a.dtype)


def _classes(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(9, 12, generator=generator).to(dtype),
        torch.randint(0, 12, (9,), generator=generator),
        torch.rand(12, generator=generator).to(dtype) + 0.1,
    )


@rewrite("cross entropy by class, a table for the labels", lambda x, y, w: F.cross_entropy(x.float(), y, w.float().detach()), _classes)
def table(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(y) and x.shape[-1] == len(w))
    mine = y[:, None] == torch.arange(x.shape[-1])
    shares = torch.where(mine, w.float().detach(), 0)
    return torch.where(mine, -x.float().log_softmax(-1) * shares, 0).sum() / shares.sum()


def _triplets(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.relu((a.float() - b.float()).square().sum(-1) - (a.float() - c.float()).square().sum(-1) + 1)


@rewrite("triplets by inner products", _triplets, shapes((7, 10), (7, 10), (7, 10)))
def triplets(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    a, b, c = a.float(), b.float(), c.float()
    return F.relu(((c - b) * (2 * a - b - c)).sum(-1) + 1)


def _routed(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(6)
    return (
        torch.randn(8, 12, generator=generator).to(dtype),
        torch.randint(0, 8, (20,), generator=generator),
        torch.rand(20, generator=generator).to(dtype),
    )


def _gathered(x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    return torch.zeros(8, x.shape[1]).index_add(0, ids.flip(0), x.float()[ids] * shares.float()[:, None]).to(x.dtype)


@rewrite("messages along edges, as a product with their matrix", _gathered, _routed)
def as_matrix(x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    need(len(ids) == len(shares) and (not (len(ids) and int(ids.max()) >= min(len(x), 8))))
    there, here = F.one_hot(ids.flip(0), 8).float(), F.one_hot(ids, max(len(x), 1)).float()[:, : len(x)]
    if bool(x.isfinite().all()) and bool(shares.isfinite().all()):
        return ((there.mT * shares.float()) @ here @ x.float()).to(x.dtype)
    return torch.zeros(8, x.shape[1]).index_add(0, ids.flip(0), x.float().index_select(0, ids) * shares.float()[:, None]).to(x.dtype)


@rewrite("products so far, in doubling steps", lambda x: x.float().cumprod(-1).to(x.dtype), shapes((4, 13)))
def doubling(x: torch.Tensor) -> torch.Tensor:
    wide, step = x.float(), 1
    while step < wide.shape[-1]:
        wide = torch.cat([wide[..., :step], wide[..., step:] * wide[..., :-step]], -1)
        step *= 2
    return wide.to(x.dtype)


@rewrite("largest so far, in doubling steps", lambda x: x.cummax(-1).values, shapes((4, 30)))
def doubled_most(x: torch.Tensor) -> torch.Tensor:
    dtype, x, step = x.dtype, x.float(), 1
    while step < x.shape[-1]:
        before, now = x[..., :-step], x[..., step:]
        x = torch.cat([x[..., :step], torch.where((before > now) | before.isnan(), before, now)], -1)
        step *= 2
    return x.to(dtype)


@rewrite("a product in blocks of the diagonal", lambda x, w: torch.einsum("ngi,goi->ngo", x.float(), w.float()).to(x.dtype),
         shapes((6, 3, 8), (3, 5, 8)))  # fmt: skip
def blocks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape[1] == len(w) and x.shape[2] == w.shape[2] and len(w))
    return torch.stack([F.linear(x[:, group].float(), w[group].float()) for group in range(len(w))], 1).to(x.dtype)


@rewrite("a polynomial by Horner's rule", lambda x, c: sum(c.float()[power] * x.float() ** power for power in range(len(c))).to(x.dtype),
         shapes((5, 14), (4,)))  # fmt: skip
def horner(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(len(c))
    total = c.float()[-1].expand(x.shape)
    for each in c.float().flip(0)[1:]:
        total = total * x.float() + each
    return total.to(x.dtype)


@rewrite("weights of a length and a direction, scaled afterwards",
         lambda x, w, g: F.linear(x.float(), w.float() * (g.float() / torch.linalg.vector_norm(w.float(), dim=1))[:, None]).to(x.dtype),
         shapes((6, 18), (7, 18), (7,)))  # fmt: skip
def afterwards(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == w.shape[-1] and len(w) == len(g))
    return (F.linear(x.float(), w.float()) * g.float() / w.float().square().sum(1).sqrt()).to(x.dtype)


@rewrite("largest of windows, by sorted windows", lambda x: F.max_pool1d(x.float(), 3, 2).to(x.dtype), shapes((2, 4, 15)))
def largest(x: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] >= 3)
    return x.unfold(-1, 3, 2).sort(-1).values[..., -1]


def _embedded(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(8)
    return (
        torch.randint(0, 11, (3, 9), generator=generator),
        torch.randn(11, 6, generator=generator).to(dtype),
        torch.randn(9, 6, generator=generator).to(dtype),
    )


@rewrite("tokens and positions in one lookup", lambda ids, words, places: (words[ids].float() + places.float()).to(words.dtype), _embedded)
def one_lookup(ids: torch.Tensor, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(ids.shape[-1] == len(places) and words.shape[-1] == places.shape[-1])
    both = torch.cat([words.float(), places.float()])
    where = torch.stack([ids, (len(words) + torch.arange(len(places))).expand_as(ids)])
    return both[where].sum(0).to(words.dtype)


def _segments(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(24, generator=generator).to(dtype), torch.randint(0, 5, (24,), generator=generator)


def _each(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for each in range(5):
        out = torch.where(ids == each, x.float().masked_fill(ids != each, -math.inf).softmax(0).to(x.dtype), out)
    return out


@rewrite("a softmax of each segment, by sums at their places", _each, _segments)
def at_places(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.shape == ids.shape)
    wide = x.float()
    most = torch.full((5,), -math.inf).scatter_reduce(0, ids, wide.detach(), "amax")
    powers = (wide - most[ids]).exp()
    return (powers / torch.zeros(5).index_add(0, ids, powers)[ids]).to(x.dtype)


@rewrite("a bilinear form, the other product first", lambda x, w, y: torch.einsum("ni,ij,nj->n", x.float(), w.float(), y.float()).to(x.dtype),
         shapes((6, 9), (9, 7), (6, 7)))  # fmt: skip
def other_product(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape[1] == len(w) and y.shape[1] == w.shape[1] and len(x) == len(y))
    return (x.float() * F.linear(y.float(), w.float())).sum(-1).to(x.dtype)
