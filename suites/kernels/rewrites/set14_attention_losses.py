"""The fourteenth frozen set of healthy kernels: attention, norms, losses. Committed before any was tried.

Two were mended, which were accused rightly: one plus a tanh loses all digits far below zero, and a gradient had one added and taken away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _with_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.cat([scores, sink.expand(len(q), 1)], -1).softmax(-1)[:, :-1] @ v


@rewrite("attention with a sink, block after block, which begins with the sink", _wide(_with_sink), shapes((5, 6), (9, 6), (9, 4), (1,)))
def begins_with_the_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape[1] == k.shape[1] > 0 and len(k) == len(v) and sink.shape == (1,))
    most, total, made = sink.float().expand(len(q), 1), torch.ones(len(q), 1), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.float().split(4), v.float().split(4), strict=True):
        scores = q.float() @ keys.mT / q.shape[-1] ** 0.5
        higher = torch.maximum(most, scores.amax(-1, keepdim=True)) if len(keys) else most
        powers, fade = (scores - higher).exp(), (most - higher).exp()
        total, made, most = total * fade + powers.sum(-1, keepdim=True), made * fade + powers @ values, higher
    return (made / total).to(q.dtype)


@rewrite("softmax at a temperature, by powers of two", _wide(lambda x: (x / 0.7).softmax(-1)), shapes((5, 9)))
def powers_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() > 0 and x.shape[-1] > 0)
    scaled = x.float() * (math.log2(math.e) / 0.7)
    powers = (scaled - scaled.amax(-1, keepdim=True)).exp2()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


@rewrite("shares of the best two, from their scores alone", _wide(lambda x: (lambda s: s / s.sum(-1, keepdim=True))(x.softmax(-1).topk(2).values)),
         shapes((6, 8)))  # fmt: skip
def scores_alone(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() > 0 and x.shape[-1] > 1)
    return x.float().topk(2).values.softmax(-1).to(x.dtype)


@rewrite("largest logarithm of sums over two axes, an axis at a time", _wide(lambda x: x.logsumexp((1, 2))), shapes((3, 4, 6)))
def an_axis_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)
    return x.float().logsumexp(2).logsumexp(1).to(x.dtype)


@rewrite("batch statistics taken out, from two halves of the rows", _wide(lambda x: (x - x.mean(0)) * (x.var(0, correction=0) + 1e-5).rsqrt()),
         shapes((9, 5)))  # fmt: skip
def two_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 1)
    one, two = x.float().split([len(x) // 2, len(x) - len(x) // 2])
    away = two.mean(0) - one.mean(0)
    spread = sum((each - each.mean(0)).square().sum(0) for each in (one, two)) + away.square() * len(one) * len(two) / len(x)
    mean = one.mean(0) + away * len(two) / len(x)
    return ((x.float() - mean) / (spread / len(x) + 1e-5).sqrt()).to(x.dtype)


@rewrite("group norm of pictures, derived by hand", lambda x, w, b: F.group_norm(x.float(), 2, w.float(), b.float()).to(x.dtype),
         shapes((2, 4, 3, 5), (4,), (4,)))  # fmt: skip
def by_hand(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.shape == b.shape == x.shape[1:2] and len(w) % 2 == 0 and x.numel() > 0)
    made: torch.Tensor = _grouped(x, w, b)
    return made


def _grouped_forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    parts = x.float().reshape(len(x), 2, -1)
    scale = (parts.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
    normed = ((parts - parts.mean(-1, keepdim=True)) * scale).view(x.shape)
    return (normed * w.float()[:, None, None] + b.float()[:, None, None]).to(x.dtype), (normed, scale, w)


def _grouped_backward(saved: Any, given: torch.Tensor) -> Any:
    normed, scale, w = saved
    weighed = (given.float() * w.float()[:, None, None]).reshape(len(given), 2, -1)
    flat = normed.view(weighed.shape)
    dx = scale * (weighed - weighed.mean(-1, keepdim=True) - flat * (weighed * flat).mean(-1, keepdim=True))
    own = (given.float() * normed).sum((0, 2, 3)), given.float().sum((0, 2, 3))
    return dx.view(given.shape).to(given.dtype), own[0].to(w.dtype), own[1].to(w.dtype)


_grouped = function(_grouped_forward, _grouped_backward)


@rewrite("gelu by a sigmoid, by an exponential of what is below zero", _wide(lambda x: x * (1.702 * x).sigmoid()), shapes((5, 9)))
def below_zero(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    small = (-1.702 * wide.abs()).exp()
    return (wide * torch.where(wide > 0, 1.0, small) / (1 + small)).to(x.dtype)


@rewrite("hard swish, by cases", _wide(F.hardswish), shapes((5, 9)))
def by_cases(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.where(wide <= -3, 0 * wide.clamp(min=-3), torch.where(wide >= 3, wide, wide * (wide + 3) / 6)).to(x.dtype)


@rewrite("relu of a half times the other, in a buffer", _wide(lambda x: (lambda a, b: a.relu() * b)(*x.chunk(2, -1))), shapes((6, 10)))
def in_a_buffer(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() > 0 and x.shape[-1] % 2 == 0)
    half = x.shape[-1] // 2
    made = torch.empty(*x.shape[:-1], half)
    made.copy_(x[..., half:])
    return (made * x[..., :half].float().clamp(min=0)).to(x.dtype)


@rewrite("divergence to a teacher, the other way, from sums of powers",
         _wide(lambda x, y: (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1)), shapes((5, 9), (5, 9)))  # fmt: skip
def sums_of_powers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape and x.shape[1] > 0)
    one, two = (each.float() - each.float().logsumexp(-1, keepdim=True) for each in (x, y))
    return (one.exp() * (one - two)).sum(-1).to(x.dtype)


@rewrite("contrast of two views, both ways in one pass",
         _wide(lambda a, b: (F.cross_entropy(a @ b.T, torch.arange(len(a))) + F.cross_entropy(b @ a.T, torch.arange(len(a)))) / 2),
         shapes((6, 5), (6, 5)))  # fmt: skip
def both_ways(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape and len(a) > 0)
    scores = a.float() @ b.float().T
    return ((scores.logsumexp(1) + scores.logsumexp(0)).mean() / 2 - scores.diagonal().mean()).to(a.dtype)


def _labelled(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (*shapes((7, 9))(dtype), whole(7, most=9))


@rewrite("cross entropy with a share for all labels, from two sums", lambda x, y: F.cross_entropy(x.float(), y, label_smoothing=0.1).to(x.dtype),
         _labelled)  # fmt: skip
def two_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.numel() > 0)
    away = x.float().logsumexp(-1, keepdim=True) - x.float()
    return (0.9 * away.gather(1, y[:, None])[:, 0] + 0.1 * away.mean(-1)).mean().to(x.dtype)


@rewrite("focal loss of logits, by logarithms of sigmoids",
         _wide(lambda x, y: (1 - torch.where(y > 0, x, -x).sigmoid()).square()
               * F.binary_cross_entropy_with_logits(x, (y > 0).float(), reduction="none")),
         shapes((5, 8), (5, 8)))  # fmt: skip
def logarithms_of_sigmoids(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    signed = torch.where(y > 0, x, -x).float()
    return ((-signed).sigmoid().square() * F.softplus(-signed)).to(x.dtype)


@rewrite("smooth absolute errors, by cases", _wide(lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5)), shapes((6, 7), (6, 7)))
def near_and_far(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    away = (x.float() - y.float()).abs()
    return torch.where(away < 0.5, away * away, away - 0.25).to(x.dtype)


@rewrite("lion, both results in one pass", lambda p, g, m: (
    (p.float() * 0.97 - 0.1 * (0.9 * m.float() + 0.1 * g.float()).sign()).to(p.dtype), (0.99 * m.float() + 0.01 * g.float()).to(m.dtype)),
    shapes((6, 5), (6, 5), (6, 5)))  # fmt: skip
def in_one_pass(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    away = g.float() - m.float()
    step = (m.float() + 0.1 * away).sign()
    return (p.float() - 0.03 * p.float() - 0.1 * step).to(p.dtype), (m.float() + 0.01 * away).to(m.dtype)


@rewrite("probabilities as logits, by a logarithm of what is left", lambda x: torch.logit(x.float()).to(x.dtype),
         lambda dtype: (shapes((5, 8))(torch.float32)[0].sigmoid().to(dtype),))  # fmt: skip
def what_is_left(x: torch.Tensor) -> torch.Tensor:
    return (x.float().log() - torch.log1p(-x.float())).to(x.dtype)


@rewrite("cosine of rows, scaled to one first",
         _wide(lambda a, b: (a * b).sum(-1) / ((a * a).sum(-1) + 1e-6).sqrt() / ((b * b).sum(-1) + 1e-6).sqrt()),
         shapes((5, 8), (5, 8)))  # fmt: skip
def scaled_first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape)
    one, two = (each.float() * (each.float().square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (a, b))
    return (one * two).sum(-1).to(a.dtype)
