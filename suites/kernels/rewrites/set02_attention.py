"""A second frozen set of healthy kernels, first part: attention and positions. Written and committed before any of them was tried."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional
HEADS = shapes(*[(2, 3, 12, 8)] * 3)


def _scale(q: torch.Tensor) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1))


def _nothing(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What attention to no key gives: zeros, in the shape of queries and values."""
    return torch.zeros_like(q) @ v.new_zeros(q.shape[-1], v.shape[-1])


def _one_key_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k[:, None].expand(-1, q.shape[1], -1, -1), v[:, None].expand(-1, q.shape[1], -1, -1))


class _OneHead(torch.autograd.Function):
    """All heads' queries are rows of one product; their gradients of keys are added up in it."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = q.float().flatten(1, 2)
        scores = rows @ k.float().mT * _scale(q)
        logs = scores.logsumexp(-1, keepdim=True)
        out = (scores - logs).exp() @ v.float()
        ctx.save_for_backward(q, k, v, out, logs)
        return out.unflatten(1, q.shape[1:3]).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, out, logs = ctx.saved_tensors
        rows, dy = q.float().flatten(1, 2), gradient.float().flatten(1, 2)
        weights = (rows @ k.float().mT * _scale(q) - logs).exp()
        dscores = weights * (dy @ v.float().mT - (dy * out).sum(-1, keepdim=True)) * _scale(q)
        dq = (dscores @ k.float()).unflatten(1, q.shape[1:3])
        return dq.to(q.dtype), (dscores.mT @ rows).to(k.dtype), (weights.mT @ dy).to(v.dtype)


rewrite("one head of keys for all queries, derived by hand", _one_key_head, shapes((2, 4, 10, 8), (2, 12, 8), (2, 12, 8)))(_OneHead.apply)


def _packed(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, 14, 8, generator=generator).to(dtype) for _ in range(3))
    return q, k, v, torch.tensor([0, 5, 6, 14])


def _checked(ends: list[int], length: int) -> None:
    need(ends[0] == 0 and ends[-1] == length and sorted(ends) == ends)


def _each_sequence(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    _checked(ends, q.shape[1])
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return torch.cat([F.scaled_dot_product_attention(q[:, some], k[:, some], v[:, some], is_causal=True) for some in parts], 1)


@rewrite("packed sequences, behind one mask", _each_sequence, _packed)
def one_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    _checked(offsets.tolist(), q.shape[1])
    place = torch.arange(q.shape[1])
    which = torch.bucketize(place, offsets[1:], right=True)
    hidden = (which[:, None] != which) | (place > place[:, None])
    scores = (q.float() @ k.float().mT * _scale(q)).masked_fill(hidden, -math.inf)
    terms = scores.softmax(-1).unsqueeze(-1) * v.float().unsqueeze(1)
    return terms.masked_fill(hidden.unsqueeze(-1), 0).sum(2).to(q.dtype)


def _alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    slopes = 2.0 ** -(torch.arange(q.shape[1]) + 1.0)
    bias = (slopes[:, None, None] * (columns - rows)).masked_fill(columns > rows, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))


@rewrite("attention with slopes, in powers of two and tiles", _alibi, HEADS)
def sloped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    log2e = math.log2(math.e)
    slopes = 2.0 ** -(torch.arange(q.shape[1]) + 1.0) * log2e
    rows, wide = torch.arange(q.shape[-2])[:, None], q.float() * (_scale(q) * log2e)
    most = torch.full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(most), _nothing(q, v).float()
    for start in range(0, k.shape[-2], 5):
        columns = torch.arange(start, min(start + 5, k.shape[-2]))
        bias = (slopes[:, None, None] * (columns - rows)).masked_fill(columns > rows, -math.inf)
        scores = wide @ k[..., start : start + 5, :].float().mT + bias
        now = torch.maximum(most, scores.detach().amax(-1, keepdim=True))
        base = now.masked_fill(now == -math.inf, 0.0)
        powers, kept = torch.exp2(scores - base), torch.exp2(most - base)
        total, out, most = total * kept + powers.sum(-1, keepdim=True), out * kept + powers @ v[..., start : start + 5, :].float(), now
    return (out / total).to(q.dtype) if k.shape[-2] else out.to(q.dtype)


def _global_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(columns <= rows) & ((columns > rows - 3) | (columns == 0)))


@rewrite("sliding window behind a first token that all see", _global_window, HEADS)
def with_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The window's keys of each query, by unfolding; the first key beside them where the window does not hold it."""
    length = q.shape[-2]
    need(k.shape[-2] == length)
    if not length:
        return _nothing(q, v)
    keys, values = (F.pad(each.float(), (0, 0, 2, 0)).unfold(-2, 3, 1) for each in (k, v))
    near = torch.einsum("bhld,bhldw->bhlw", q.float(), keys) * _scale(q)
    first = q.float() @ k[..., :1, :].float().mT * _scale(q)
    place = torch.arange(length)[:, None]
    near = near.masked_fill(place + torch.arange(3) < 2, -math.inf)
    first = first.masked_fill(place < 3, -math.inf)
    weights = torch.cat([first, near], -1).softmax(-1)
    # a first key that is not finite must not reach rows that see it in their window
    seen = torch.where(place < 3, 0.0, weights[..., :1] * v[..., :1, :].float())
    return (seen + torch.einsum("bhlw,bhldw->bhld", weights[..., 1:], values)).to(q.dtype)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((20 * torch.tanh(q.float() @ k.float().mT * _scale(q) / 20)).softmax(-1) @ v.float()).to(q.dtype)


class _CappedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = 20 * torch.tanh(q.float() @ k.float().mT * (_scale(q) / 20))
        logs = scores.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, logs)
        return ((scores - logs).exp() @ v.float()).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, logs = ctx.saved_tensors
        dy, bent = gradient.float(), torch.tanh(q.float() @ k.float().mT * (_scale(q) / 20))
        weights = (20 * bent - logs).exp()
        away = dy @ v.float().mT
        dscores = weights * (away - (weights * away).sum(-1, keepdim=True)) * (1 - bent * bent) * _scale(q)
        return (dscores @ k.float()).to(q.dtype), (dscores.mT @ q.float()).to(k.dtype), (weights.mT @ dy).to(v.dtype)


rewrite("attention with capped scores, recomputed", _capped, HEADS)(_CappedAttention.apply)


def _sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT * _scale(q)
    beside = sink.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return (torch.cat([scores, beside], -1).softmax(-1)[..., :-1] @ v.float()).to(q.dtype)


@rewrite("attention with a sink, added to the sum of powers", _sink, shapes(*[(2, 3, 12, 8)] * 3, (3,)))
def sunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    scores, beside = q.float() @ k.float().mT * _scale(q), sink.float()[:, None, None]
    if not k.shape[-2]:
        return _sink(q, k, v, sink * 1)
    most = torch.maximum(scores.amax(-1, keepdim=True), beside).detach()
    powers = (scores - most).exp()
    return (powers @ v.float() / (powers.sum(-1, keepdim=True) + (beside - most).exp())).to(q.dtype)


def _lengths(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((3, 2, 6, 8), (3, 2, 10, 8), (3, 2, 10, 8))(dtype), torch.tensor([10, 4, 7])


def _behind_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(not bool((lengths < 1).any()) and not bool((lengths > k.shape[-2]).any()))
    seen = torch.arange(k.shape[-2]) < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@rewrite("keys of other lengths, cut off one by one", _behind_lengths, _lengths)
def cut_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(not bool((lengths < 1).any()) and not bool((lengths > k.shape[-2]).any()))
    made = []
    for some, keys, values, length in zip(q.float(), k.float(), v.float(), lengths.tolist(), strict=True):
        scores = torch.einsum("hqd,hkd->hqk", some, keys[:, :length]) * _scale(q)
        made.append(torch.einsum("hqk,hkd->hqd", scores.softmax(-1), values[:, :length]))
    return torch.stack(made).to(q.dtype) if made else _nothing(q, v)


def _at_positions(dtype: torch.dtype) -> tuple[Any, ...]:
    angles = torch.arange(32)[:, None] / 10000 ** (torch.arange(4) / 4)
    places = torch.randint(0, 32, (9,), generator=torch.Generator().manual_seed(7))
    return *shapes((2, 9, 3, 8))(dtype), angles.cos(), angles.sin(), places


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    cos, sin = cos[places][:, None], sin[places][:, None]
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


@rewrite("rope at given positions, as a small product", _turned, _at_positions)
def turned_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == 2 * cos.shape[-1] and cos.shape == sin.shape)
    c, s = F.embedding(places, cos), F.embedding(places, sin)
    turns = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)  # (places, angles, 2, 2)
    pairs = x.float().unflatten(-1, (2, cos.shape[-1]))
    return torch.einsum("lanm,blhma->blhna", turns, pairs).flatten(-2).to(x.dtype)


def _normed_scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k = (F.rms_norm(each.float(), each.shape[-1:], w.float(), eps=1e-6) for each in (q, k))
    return (q @ k.mT).softmax(-1).to(w.dtype)


@rewrite("weights of normalised queries and keys, scaled afterwards", _normed_scores, shapes((2, 10, 16), (2, 12, 16), (16,)))
def scaled_afterwards(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    rows, columns = ((each.float().square().mean(-1) + 1e-6).rsqrt() for each in (q, k))
    products = (q.float() * w.float()) @ (k.float() * w.float()).mT
    return (products * rows[..., None] * columns[..., None, :]).softmax(-1).to(w.dtype)
