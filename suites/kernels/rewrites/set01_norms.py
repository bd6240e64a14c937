"""Healthy kernels that the judge had not seen, first part: norms, activations, losses. Written and committed before any of them was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        scale = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, w, mean, scale)
        ctx.bias = b.dtype
        return ((wide - mean) * scale * w.float() + b.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, w, mean, scale = ctx.saved_tensors
        dy = gradient.float()
        normed, weighted = (x.float() - mean) * scale, dy * w.float()
        dx = scale * (weighted - weighted.mean(-1, keepdim=True) - normed * (weighted * normed).mean(-1, keepdim=True))
        rows = tuple(range(dy.dim() - 1))
        return dx.to(x.dtype), (dy * normed).sum(rows).to(w.dtype), dy.sum(rows).to(ctx.bias)


rewrite("layer norm, derived by hand", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shapes((3, 5, 24), (24,), (24,)))(_Layer.apply)


def _added(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], w, eps=1e-6), total


@rewrite("residual and rms norm in one", _added, shapes((6, 48), (6, 48), (48,)))
def added(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    return (total * scale * w.float()).to(x.dtype), total.to(x.dtype)


def _gemma(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], 1 + w.float(), eps=1e-6).to(x.dtype)


@rewrite("rms norm, a weight that is one more", _gemma, shapes((6, 48), (48,)))
def plus_one(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    normed = wide / torch.sqrt(torch.einsum("...d,...d->...", wide, wide)[..., None] / max(x.shape[-1], 1) + 1e-6)
    return torch.addcmul(normed, normed, w.float()).to(x.dtype)


@rewrite("group norm and silu in one", lambda x: F.silu(F.group_norm(x, 2)), shapes((3, 8, 6, 5)))
def normed_silu(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[1] % 2))
    rows = x.float().reshape(len(x), 2, x[:1].numel() // 2)
    variance, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
    normed = ((rows - mean) * torch.rsqrt(variance + 1e-5)).reshape(x.shape)
    return (normed * torch.sigmoid(normed)).to(x.dtype)


def _statistics(dtype: torch.dtype) -> tuple[Any, ...]:
    x, mean, w, b = (each.requires_grad_(place != 1) for place, each in enumerate(shapes((4, 6, 9), (6,), (6,), (6,))(dtype)))
    return x, mean, (torch.rand(6, generator=torch.Generator().manual_seed(3)) + 0.5).to(dtype), w, b


@rewrite("batch norm, folded into a scale and a shift", lambda x, mean, variance, w, b: F.batch_norm(x, mean, variance, w, b), _statistics)
def folded(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scale = w.float() * torch.rsqrt(variance.float() + 1e-5)
    shift = b.float() - mean.float() * scale
    return (x.float() * scale[:, None] + shift[:, None]).to(x.dtype)


@rewrite("instance norm, by rows", lambda x: F.instance_norm(x), shapes((3, 4, 30)))
def instance(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    return ((wide - mean) * torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


@rewrite("l2 norm, by a reciprocal root", lambda x: F.normalize(x, dim=-1), shapes((6, 40)))
def unit(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide / torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=1e-12)).to(x.dtype)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        powers = torch.exp2((wide - wide.amax(-1, keepdim=True)) * math.log2(math.e)) if x.shape[-1] else wide
        y = (powers / powers.sum(-1, keepdim=True)).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        wide, dy = y.float(), gradient.float()
        return (wide * (dy - (dy * wide).sum(-1, keepdim=True))).to(y.dtype)


rewrite("softmax in powers of two, derived from its result", lambda x: x.softmax(-1), shapes((5, 40)))(_Softmax.apply)


def _scores(dtype: torch.dtype) -> tuple[Any, ...]:
    keep = torch.rand(4, 20, generator=torch.Generator().manual_seed(5)) < 0.7
    keep[:, 0] = True
    return shapes((4, 20))(dtype)[0], keep


@rewrite("softmax of what a mask keeps", lambda x, keep: x.masked_fill(~keep, -math.inf).softmax(-1), _scores)
def kept(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    wide = torch.where(keep, x.float(), -math.inf)
    powers = (wide - wide.amax(-1, keepdim=True)).exp() if x.shape[-1] else wide
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


@rewrite("logsumexp, in tiles", lambda x: x.logsumexp(-1), shapes((5, 50)))
def streamed(x: torch.Tensor) -> torch.Tensor:
    most = x.new_full(x.shape[:-1], -math.inf).float()
    total = torch.zeros_like(most)
    for tile in x.float().split(16, -1):
        if tile.shape[-1]:
            now = torch.maximum(most, tile.amax(-1))
            total, most = total * (most - now).exp() + (tile - now[..., None]).exp().sum(-1), now
    return (most + total.log()).to(x.dtype)


def _labelled(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(12, 30, generator=generator).to(dtype), torch.randint(0, 30, (12,), generator=generator)


class _Entropy(torch.autograd.Function):
    """The gradient is made in the forward pass, a few rows at a time, as large vocabularies need it."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total, made = logits.new_zeros(()).float(), torch.empty_like(logits)
        for start in range(0, len(logits), 5):
            rows, labels = logits[start : start + 5].float(), target[start : start + 5]
            logs = rows - rows.logsumexp(-1, keepdim=True)
            total = total - logs.gather(-1, labels[:, None]).sum()
            made[start : start + 5] = ((logs.exp() - F.one_hot(labels, rows.shape[-1])) / len(logits)).to(logits.dtype)
        ctx.save_for_backward(made)
        return (total / len(logits)).to(logits.dtype) if len(logits) else logits.new_full((), math.nan)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (made,) = ctx.saved_tensors
        return (made.float() * gradient.float()).to(made.dtype), None


rewrite("cross entropy, in chunks of rows", F.cross_entropy, _labelled)(_Entropy.apply)


@rewrite("cross entropy, in chunks of the vocabulary", lambda x, y: F.cross_entropy(x, y, reduction="none"), _labelled)
def by_words(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    chosen = logits.gather(-1, target[:, None])[:, 0].float()
    return (streamed(logits.float()) - chosen).to(logits.dtype)


@rewrite("cross entropy with smoothed labels", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"), _labelled)
def smoothed(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    wide = logits.float()
    whole, chosen = wide.logsumexp(-1), wide.gather(-1, target[:, None])[:, 0]
    return (whole - 0.9 * chosen - 0.1 * wide.mean(-1)).to(logits.dtype)


def _headed(dtype: torch.dtype) -> tuple[Any, ...]:
    hidden, weight = shapes((10, 16), (24, 16))(dtype)
    return hidden, weight, torch.randint(0, 24, (10,), generator=torch.Generator().manual_seed(9))


@rewrite("linear and cross entropy in one, in chunks", lambda h, w, y: F.cross_entropy(h @ w.mT, y, reduction="none"), _headed)
def headed(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses, columns = [], weight.float().mT  # once, so that its gradient is added up in float32
    for rows, labels in zip(hidden.split(4), target.split(4), strict=True):
        logits = rows.float() @ columns
        losses.append(logits.logsumexp(-1) - logits.gather(-1, labels[:, None])[:, 0])
    return torch.cat(losses).to(hidden.dtype)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        wide = gate.float()
        return (wide * torch.sigmoid(wide)).to(gate.dtype) * up

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = (each.float() for each in ctx.saved_tensors)
        dy, opened = gradient.float(), torch.sigmoid(gate)
        dgate = dy * up * (opened + gate * opened * torch.sigmoid(-gate))
        return dgate.to(gradient.dtype), (dy * gate * opened).to(gradient.dtype)


rewrite("swiglu, recomputed in its backward pass", lambda gate, up: F.silu(gate) * up, shapes((6, 30), (6, 30)))(_Swiglu.apply)


@rewrite("geglu, tanh written out", lambda gate, up: F.gelu(gate, approximate="tanh") * up, shapes((6, 30), (6, 30)))
def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    wide = gate.float()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1 + torch.tanh(inner)) * up.float()).to(gate.dtype)


@rewrite("softplus, as a sum of powers", F.softplus, shapes((6, 30)))
def softplus(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.logaddexp(wide, torch.zeros_like(wide)).to(x.dtype)


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        power = torch.exp(-x.float().abs())
        return (torch.where(x < 0, power, 1.0) / (1 + power)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        power = torch.exp(-x.float().abs())
        return (gradient.float() * power / (1 + power).square()).to(x.dtype)


rewrite("sigmoid, of what is below zero and what is above", torch.sigmoid, shapes((6, 30)))(_Sigmoid.apply)
