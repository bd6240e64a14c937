"""A second frozen set of healthy kernels, third part: losses. Written and committed before any of them was tried."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _labelled(dtype: torch.dtype, ignored: bool = False) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    x, label = torch.randn(10, 24, generator=generator).to(dtype), torch.randint(0, 24, (10,), generator=generator)
    if ignored:
        label[torch.tensor([2, 7])] = -100
    return x, label


class _Smoothed(torch.autograd.Function):
    """The gradient is made beside the loss, in chunks of rows, and scaled when it is asked for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        count, total = (label != -100).sum().clamp(min=1), torch.zeros(())
        dx = torch.empty(x.shape)
        for start in range(0, len(x), 4):
            some, right = x[start : start + 4].float(), label[start : start + 4]
            kept = (right != -100).float()[:, None]
            logs = some.log_softmax(-1)
            goal = torch.full_like(some, 0.1 / max(x.shape[-1], 1)).scatter_add(-1, right.clamp(min=0)[:, None], torch.full_like(kept, 0.9))
            total = total - (torch.where(kept > 0, logs, 0.0) * goal).sum()
            dx[start : start + 4] = torch.where(kept > 0, logs.exp() - goal, 0.0) / count
        ctx.save_for_backward(dx)
        ctx.dtype = x.dtype
        return (total / count).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (ctx.saved_tensors[0] * gradient.float()).to(ctx.dtype), None


def _smoothed(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    lost = F.cross_entropy(x, label, label_smoothing=0.1, reduction="sum")
    return lost / (label != -100).sum().clamp(min=1)


rewrite("smoothed cross entropy of kept rows, its gradient made beside it", _smoothed, functools.partial(_labelled, ignored=True))(_Smoothed.apply)


def _capped(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(30 * torch.tanh(x.float() / 30), label, reduction="none").to(x.dtype)


class _CappedEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        bent = 30 * torch.tanh(x.float() / 30)
        logs = bent.logsumexp(-1)
        ctx.save_for_backward(x, label, logs)
        return (logs - bent.gather(-1, label[:, None])[:, 0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, label, logs = ctx.saved_tensors
        slope = torch.tanh(x.float() / 30)
        weights = (30 * slope - logs[:, None]).exp()
        away = weights - F.one_hot(label, x.shape[-1])
        return (gradient.float()[:, None] * away * (1 - slope * slope)).to(x.dtype), None


rewrite("cross entropy of capped scores, derived by hand", _capped, _labelled)(_CappedEntropy.apply)


def _with_z(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    logs = x.float().logsumexp(-1)
    return (F.cross_entropy(x.float(), label, reduction="none") + 1e-2 * logs.square()).to(x.dtype)


@rewrite("cross entropy and the square of its logarithm, in one pass", _with_z, _labelled)
def in_one_pass(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if not x.shape[-1]:
        return _with_z(x * 1, label)
    most, total = torch.full((len(x),), -math.inf), torch.zeros(len(x))
    for tile in x.float().split(7, -1):
        now = torch.maximum(most, tile.detach().amax(-1))
        base = now.masked_fill(now == -math.inf, 0.0)
        total, most = total * (most - base).exp() + (tile - base[:, None]).exp().sum(-1), now
    logs = most + total.log()
    return (logs * (1 + 1e-2 * logs) - x.float().gather(-1, label[:, None])[:, 0]).to(x.dtype)


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x.float().log_softmax(-1), y.float().softmax(-1), reduction="batchmean").to(x.dtype)


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        low, high = x.float().log_softmax(-1), y.float().log_softmax(-1)
        ctx.save_for_backward(low, high)
        ctx.dtype = x.dtype
        lost = torch.where(high.exp() == 0, 0.0, high.exp() * (high - low))  # what has no share loses nothing
        return (lost.sum() / len(x)).to(x.dtype) if len(x) else _divergence(x * 1, y)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = ctx.saved_tensors
        scale, away = gradient.float() / max(len(low), 1), high - low
        dy = high.exp() * (away - (high.exp() * away).sum(-1, keepdim=True))
        return (scale * (low.exp() - high.exp())).to(ctx.dtype), (scale * dy).to(ctx.dtype)


rewrite("kl divergence of scores, both gradients by hand", _divergence, shapes((6, 20), (6, 20)))(_Divergence.apply)


def _jensen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x.float().log_softmax(-1), y.float().log_softmax(-1)
    middle = torch.logsumexp(torch.stack([a + math.log(0.7), b + math.log(0.3)]), 0)
    return (0.3 * b.exp() * (b - middle) + 0.7 * a.exp() * (a - middle)).sum(-1).to(x.dtype)


@rewrite("jensen-shannon divergence, by shares", _jensen, shapes((6, 20), (6, 20)))
def by_shares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mixture's logarithm is one of the two and the softplus of how far the other is."""
    a, b = x.float().log_softmax(-1), y.float().log_softmax(-1)
    away = b - a + math.log(3 / 7)
    lost = -math.log(0.7) - F.softplus(away)  # a less the mixture
    return (0.7 * a.exp() * lost + 0.3 * b.exp() * (b - a + lost)).sum(-1).to(x.dtype)


def _binary(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(x, torch.sigmoid(y), reduction="none")


@rewrite("binary cross entropy, by what is lost on each side", _binary, shapes((6, 20), (6, 20)))
def on_each_side(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    goal = torch.sigmoid(y).float()
    return (-goal * F.logsigmoid(x.float()) - (1 - goal) * F.logsigmoid(-x.float())).to(x.dtype)


def _chosen(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return x.log_softmax(-1).gather(-1, label[:, None])[:, 0]


@rewrite("logarithms of chosen tokens, row by row", _chosen, _labelled)
def row_by_row(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    made = [row.float()[right] - row.float().logsumexp(-1) for row, right in zip(x, label, strict=True)]
    return torch.stack(made).to(x.dtype) if made else _chosen(x * 1, label)


def _preferred(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return -F.logsigmoid(0.1 * (a.float() - b.float())).mean().to(a.dtype)


@rewrite("loss of preferences, by softplus", _preferred, shapes((12,), (12,)))
def by_softplus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    away = 0.1 * (b.float() - a.float())
    return (away.clamp(min=0) + torch.log1p((-away.abs()).exp())).mean().to(a.dtype)


def _contrast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = F.normalize(a.float(), dim=-1), F.normalize(b.float(), dim=-1)
    return F.cross_entropy(a @ b.mT / 0.5, torch.arange(len(a)), reduction="none")


@rewrite("contrast of pairs, without a table of labels", _contrast, shapes((7, 16), (7, 16)))
def of_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(len(a) == len(b))
    a, b = (each.float() / each.float().norm(dim=-1, keepdim=True).clamp(min=1e-12) for each in (a, b))
    scores = 2 * (a @ b.mT)
    return scores.logsumexp(-1) - scores.diagonal() if len(a) else _contrast(a * 1, b)
