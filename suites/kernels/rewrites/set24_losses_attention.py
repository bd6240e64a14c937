"""The twenty-fourth frozen set of healthy kernels, second part: shares, losses, attention. Committed before any was tried."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first tensor."""

    @functools.wraps(formula)
    def made(*inputs: Any) -> Any:
        return formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)

    return made


# Shares


@rewrite("softmax, four columns at a time, rescaled", lambda x: x.softmax(1), shapes((3, 10)))
@_wide
def rescaled(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    top, total = x.new_full((len(x), 1), -torch.inf), x.new_zeros(len(x), 1)
    for block in x.split(4, 1):
        later = torch.maximum(top, block.detach().amax(1, keepdim=True))
        total = torch.where(top == -torch.inf, 0, total * (top - later).exp()) + (block - later).exp().sum(1, keepdim=True)
        top = later
    return (x - top).exp() / total


@rewrite("softmax by powers of two", _wide(lambda x: x.softmax(1)), shapes((3, 9)))
@_wide
def powers_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    powers = torch.exp2((x - x.detach().amax(1, keepdim=True)) * 1.4426950408889634)
    return powers * powers.sum(1, keepdim=True).reciprocal()


@rewrite("softmax with its backward from the result", lambda x: x.softmax(1), shapes((4, 7)))
def from_the_result(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)

    def forward(x: torch.Tensor) -> Any:
        up = x.float()
        powers = (up - up.amax(1, keepdim=True)).exp()
        out = (powers / powers.sum(1, keepdim=True)).to(x.dtype)
        return out, (out,)

    def backward(saved: Any, g: torch.Tensor) -> torch.Tensor:
        out, up = saved[0].float(), g.float()
        return (out * (up - (out * up).sum(1, keepdim=True))).to(g.dtype)

    return function(forward, backward)(x)


@rewrite("logarithm of a sum, a tree of pairs", _wide(lambda x: x.logsumexp(1)), shapes((3, 11)))
@_wide
def a_tree_of_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool((x < torch.inf).all()), bool((x > -torch.inf).all()))
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        one, two = x[:, :half], x[:, half : 2 * half]
        top, low = torch.maximum(one, two), torch.minimum(one, two)
        x = torch.cat([top + torch.log1p((low - top).exp()), x[:, 2 * half :]], 1)
    return x[:, 0].clone()


@rewrite("shares by a temperature", lambda x, t: (x / t[:, None]).softmax(1),
         lambda dtype: (*shapes((3, 6))(dtype), torch.tensor([0.5, 1.0, 2.0], dtype=dtype)))  # fmt: skip
@_wide
def by_a_temperature(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, t.shape == x.shape[:1], x.shape[1] > 0, bool((t > 0).all()))
    y = x / t[:, None]
    return (y - y.logsumexp(1, keepdim=True)).exp()


# Losses


def _labelled(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return *shapes((6, 9))(dtype), whole(6, most=9)


def _fit(x: torch.Tensor, at: torch.Tensor) -> None:
    need(x.dim() == 2, at.shape == x.shape[:1], x.shape[1] > 0, bool(((at >= 0) & (at < x.shape[1])).all()))


@rewrite("cross entropy, the vocabulary in chunks", lambda x, at: F.cross_entropy(x, at, reduction="none"), _labelled)
@_wide
def vocabulary_in_chunks(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    _fit(x, at)
    sums = [chunk.logsumexp(1) for chunk in x.split(4, 1)]
    return torch.stack(sums).logsumexp(0) - x.gather(1, at[:, None])[:, 0]


@rewrite("cross entropy that makes its gradient at once", lambda x, at: F.cross_entropy(x, at), _labelled)
def its_gradient_at_once(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    _fit(x, at)

    def forward(x: torch.Tensor, at: torch.Tensor) -> Any:
        logs = x.float() - x.float().logsumexp(1, keepdim=True)
        slope = (logs.exp() - F.one_hot(at, x.shape[1])) / max(len(x), 1)
        return (-logs.gather(1, at[:, None]).sum() / len(x)).to(x.dtype) if len(x) else x.sum() / 0, (slope.to(x.dtype),)

    return function(forward, lambda saved, g: (saved[0] * g, None))(x, at)


@rewrite("linear and cross entropy, rows in pieces", lambda h, w, at: F.cross_entropy((h @ w.T).float(), at, reduction="sum"),
         lambda dtype: (*shapes((7, 5), (9, 5))(dtype), whole(7, most=9)))  # fmt: skip
def rows_in_pieces(h: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(h.dim() == w.dim() == 2, h.shape[1] == w.shape[1], at.shape == h.shape[:1], bool(((at >= 0) & (at < len(w))).all()), len(w) > 0)

    def forward(h: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> Any:
        loss, by_w, by_h = torch.zeros(()), torch.zeros(w.shape), []
        for rows, labels in zip(h.float().split(3), at.split(3), strict=True):
            logs = (rows @ w.float().T).log_softmax(1)
            slope = logs.exp() - F.one_hot(labels, len(w))
            loss = loss - logs.gather(1, labels[:, None]).sum()
            by_h.append(slope @ w.float())
            by_w = by_w + slope.T @ rows
        return loss, (torch.cat(by_h).to(h.dtype) if by_h else h.clone(), by_w.to(w.dtype))

    return function(forward, lambda saved, g: (saved[0] * g.to(saved[0].dtype), saved[1] * g.to(saved[1].dtype), None))(h, w, at)


@rewrite("cross entropy with smoothed labels, by sums", _wide(lambda x, at: F.cross_entropy(x, at, reduction="none", label_smoothing=0.1)), _labelled)
@_wide
def smoothed_by_sums(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    _fit(x, at)
    return x.logsumexp(1) - 0.9 * x.gather(1, at[:, None])[:, 0] - 0.1 * x.mean(1)


@rewrite("loss of a large sum, squared", _wide(lambda x: 1e-2 * x.logsumexp(1).square()), shapes((4, 8)))
@_wide
def of_a_large_sum(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    top = x.detach().amax(1)
    total = top + (x - top[:, None]).exp().sum(1).log()
    return total * (total * 1e-2)


@rewrite("divergence of two scores", _wide(lambda x, y: (x.softmax(1) * (x.log_softmax(1) - y.log_softmax(1))).sum(1)), shapes((4, 6), (4, 6)))
@_wide
def divergence_of_scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape, x.dim() == 2, x.shape[1] > 0)
    one, two = x - x.logsumexp(1, keepdim=True), y - y.logsumexp(1, keepdim=True)
    return torch.linalg.vecdot(one.exp(), one - two)


@rewrite("preference of one over another", _wide(lambda a, b, c, d: -F.logsigmoid(0.1 * ((a - b) - (c - d)))), shapes((8,), (8,), (8,), (8,)))
@_wide
def one_over_another(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape == c.shape == d.shape)
    return F.softplus(-0.1 * (a - b - c + d), threshold=1e4)


@rewrite("clipped gain of a policy, by a choice", _wide(
    lambda ratio, gain: torch.minimum(ratio * gain.detach(), ratio.clamp(0.8, 1.2) * gain.detach())),
    lambda dtype: (shapes((9,))(dtype)[0].float().mul(0.3).exp().to(dtype), shapes((9,), (9,))(dtype)[1]))  # fmt: skip
@_wide
def by_a_choice(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    need(ratio.shape == gain.shape)
    gain = gain.detach()
    return torch.where(gain >= 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8)) * gain


@rewrite("entropy of scores", _wide(lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1)), shapes((4, 7)))
@_wide
def entropy_of_scores(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    away = x - x.detach().amax(1, keepdim=True)
    powers = away.exp()
    total = powers.sum(1)
    return total.log() - (powers * away).sum(1) / total


# Attention


@dataclasses.dataclass
class Heads:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def _heads(q: tuple[int, ...], k: tuple[int, ...]) -> Callable[[torch.dtype], tuple[Heads]]:
    return lambda dtype: (Heads(*shapes(q, k, k)(dtype)),)


def _fitting(h: Heads) -> None:
    need(h.q.dim() == 4, h.k.shape == h.v.shape, h.q.shape[0] == h.k.shape[0], h.q.shape[3] == h.k.shape[3], h.k.shape[2] > 0)
    need(h.k.shape[1] > 0 and h.q.shape[1] % h.k.shape[1] == 0, h.q.shape[3] > 0)


@rewrite("attention, three keys at a time, rescaled", lambda h: F.scaled_dot_product_attention(h.q, h.k, h.v), _heads((2, 2, 4, 8), (2, 2, 7, 8)))
def three_keys_at_a_time(h: Heads) -> torch.Tensor:
    _fitting(h)
    need(h.q.shape[1] == h.k.shape[1])
    q = h.q.float() * h.q.shape[3] ** -0.5
    top, total, out = q.new_full((*q.shape[:3], 1), -torch.inf), q.new_zeros(*q.shape[:3], 1), torch.zeros_like(q)
    for k, v in zip(h.k.float().split(3, 2), h.v.float().split(3, 2), strict=True):
        scores = q @ k.mT
        later = torch.maximum(top, scores.detach().amax(3, keepdim=True))
        powers = (scores - later).exp()
        before = torch.where(top == -torch.inf, 0, (top - later).exp())
        total, out, top = total * before + powers.sum(3, keepdim=True), out * before + powers @ v, later
    return (out / total).to(h.q.dtype)


@rewrite("attention, weights computed again on the way back", lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
         shapes((2, 4, 8), (2, 6, 8), (2, 6, 8)))  # fmt: skip
def weights_computed_again(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0, q.shape[2] > 0)
    scale = q.shape[2] ** -0.5

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q.float() @ k.float().mT * scale
        total = scores.logsumexp(2, keepdim=True)
        out = ((scores - total).exp() @ v.float()).to(q.dtype)
        return out, (q, k, v, out, total)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        one, two, three, out, total = (each.float() for each in saved)
        weights = (one @ two.mT * scale - total).exp()
        up = g.float()
        inner = weights * (up @ three.mT - (up * out).sum(2, keepdim=True)) * scale
        return (inner @ two).to(g.dtype), (inner.mT @ one).to(g.dtype), (weights.mT @ up).to(g.dtype)

    return function(forward, backward)(q, k, v)


@rewrite("causal attention, two queries at a time and the keys up to them", lambda h: F.scaled_dot_product_attention(h.q, h.k, h.v, is_causal=True),
         _heads((1, 2, 5, 4), (1, 2, 5, 4)))  # fmt: skip
def keys_up_to_them(h: Heads) -> torch.Tensor:
    _fitting(h)
    need(h.q.shape == h.k.shape)
    out = []
    for begin in range(0, h.q.shape[2], 2):
        q, k, v = h.q[:, :, begin : begin + 2].float(), h.k[:, :, : begin + 2].float(), h.v[:, :, : begin + 2].float()
        hidden = torch.arange(k.shape[2]) > begin + torch.arange(q.shape[2])[:, None]
        out.append((q @ k.mT / q.shape[3] ** 0.5).masked_fill(hidden, -torch.inf).softmax(3) @ v)
    return torch.cat(out, 2).to(h.q.dtype)


@rewrite("attention of grouped queries, without repeated keys", lambda h: F.scaled_dot_product_attention(h.q, h.k, h.v, enable_gqa=True),
         _heads((2, 4, 3, 8), (2, 2, 5, 8)))  # fmt: skip
def without_repeated_keys(h: Heads) -> torch.Tensor:
    _fitting(h)
    q = h.q.unflatten(1, (h.k.shape[1], -1)).float()
    weights = torch.einsum("ngrqd,ngkd->ngrqk", q, h.k.float() * h.q.shape[3] ** -0.5).softmax(4)
    return torch.einsum("ngrqk,ngkd->ngrqd", weights, h.v.float()).flatten(1, 2).to(h.q.dtype)


@rewrite("attention, heads last in memory", lambda *heads: F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in heads)).transpose(1, 2),
         shapes((2, 4, 3, 8), (2, 5, 3, 8), (2, 5, 3, 8)))  # fmt: skip
@_wide
def heads_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 4, k.shape == v.shape, len(q) == len(k), q.shape[2:] == k.shape[2:], k.shape[1] > 0, q.shape[3] > 0)
    return torch.einsum("nhqk,nkhd->nqhd", (torch.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[3] ** -0.5).softmax(3), v)


def _packed(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, ends.dim() == 1, len(ends) > 0, bool((ends.diff() >= 0).all()), int(ends[0]) >= 0, int(ends[-1]) == len(x), x.shape[1] > 0)
    of = torch.bucketize(torch.arange(len(x)), ends, right=True)
    scores = (x @ x.mT * x.shape[1] ** -0.5).masked_fill(of[:, None] != of, -torch.inf)
    return scores.softmax(1) @ x


@rewrite("attention of packed sequences, one after another", _wide(_packed), lambda dtype: (*shapes((9, 4))(dtype), torch.tensor([2, 6, 9])))
@_wide
def one_after_another(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, ends.dim() == 1, len(ends) > 0, bool((ends.diff() >= 0).all()), int(ends[0]) >= 0, int(ends[-1]) == len(x), x.shape[1] > 0)
    parts = x.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
    return torch.cat([F.scaled_dot_product_attention(part[None], part[None], part[None])[0] if len(part) else part for part in parts])
