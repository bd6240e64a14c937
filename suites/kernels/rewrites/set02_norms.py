"""A second frozen set of healthy kernels, second part: norms and gates. Written and committed before any of them was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _added(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], w, eps=1e-6), total


class _Added(torch.autograd.Function):
    """Both results, and the gradient of both, in one go."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        scale = torch.rsqrt(total.float().square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(total, scale, w)
        return (total.float() * scale * w.float()).to(x.dtype), total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, beside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total, scale, w = ctx.saved_tensors
        normed, weighted = total.float() * scale, gradient.float() * w.float()
        dx = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True)) + beside.float()
        return dx.to(total.dtype), dx.to(total.dtype), (gradient.float() * normed).sum(0).to(w.dtype)


rewrite("residual and rms norm, both derived by hand", _added, shapes((6, 40), (6, 40), (40,)))(_Added.apply)


@rewrite("group norm, a factor and a shift for each channel", lambda x, w, b: F.group_norm(x, 3, w, b), shapes((2, 6, 5, 4), (6,), (6,)))
def factor_and_shift(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[1] % 3) and x.shape[1])
    groups = x.float().reshape(len(x), 3, x[0, : x.shape[1] // 3].numel() if len(x) else 1)
    mean = groups.mean(-1, keepdim=True)
    scale = torch.rsqrt((groups - mean).square().mean(-1, keepdim=True) + 1e-5)
    factor = (scale * w.float().view(1, 3, -1)).flatten(1)[..., None, None]
    center = mean.expand(-1, -1, x.shape[1] // 3).reshape(len(x), x.shape[1], 1, 1)
    return ((x.float() - center) * factor + b.float()[:, None, None]).to(x.dtype)


def _gated(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float() * F.silu(z.float()), x.shape[-1:], w.float(), eps=1e-5).to(x.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, z, w)
        product = x.float() * z.float() * torch.sigmoid(z.float())
        return (product * torch.rsqrt(product.square().mean(-1, keepdim=True) + 1e-5) * w.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, z, w = (each.float() for each in ctx.saved_tensors)
        opened = torch.sigmoid(z)
        product = x * z * opened
        scale = torch.rsqrt(product.square().mean(-1, keepdim=True) + 1e-5)
        normed, weighted = product * scale, gradient.float() * w
        inner = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
        low = ctx.saved_tensors[0].dtype
        dz = inner * x * opened * (1 + z * (1 - opened))
        return (inner * z * opened).to(low), dz.to(low), (gradient.float() * normed).flatten(0, -2).sum(0).to(low)


rewrite("gated rms norm, all of it computed again", _gated, shapes((2, 5, 24), (2, 5, 24), (24,)))(_Gated.apply)


@rewrite("l2 norm of heads, over a view of all columns", lambda x: x * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1e-6).to(x.dtype),
         shapes((3, 4, 16)))  # fmt: skip
def over_a_view(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    total = torch.einsum("...d,...d->...", wide, wide)
    return (wide / torch.sqrt(total + 1e-6)[..., None]).to(x.dtype)


def _halves(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class _Halves(torch.autograd.Function):
    """Gate and value in one tensor; its gradient is written half by half."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        need(not (x.shape[-1] % 2))
        ctx.save_for_backward(x)
        gate, up = x.float().chunk(2, -1)
        return (gate * torch.sigmoid(gate) * up).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate, up = x.float().chunk(2, -1)
        opened, dx, half = torch.sigmoid(gate), torch.empty(x.shape, dtype=x.dtype), x.shape[-1] // 2
        dx[..., :half] = gradient.float() * up * opened * (1 + gate * (1 - opened))
        dx[..., half:] = gradient.float() * gate * opened
        return dx


rewrite("swiglu of two halves, its gradient written in parts", _halves, shapes((6, 40)))(_Halves.apply)


class _Geglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return (gate.float() * 0.5 * torch.special.erfc(-gate.float() / math.sqrt(2)) * up.float()).to(up.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = (each.float() for each in ctx.saved_tensors)
        dy, below = gradient.float(), 0.5 * torch.special.erfc(-gate / math.sqrt(2))
        slope = below + gate * torch.exp(-0.5 * gate * gate) / math.sqrt(2 * math.pi)
        return (dy * up * slope).to(gradient.dtype), (dy * gate * below).to(gradient.dtype)


rewrite("geglu, its slope written out", lambda gate, up: F.gelu(gate) * up, shapes((6, 30), (6, 30)))(_Geglu.apply)


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, b)
        wide = x.float() + b.float()
        bent = torch.tanh(math.sqrt(2 / math.pi) * wide * (1 + 0.044715 * wide * wide))
        return (0.5 * wide * (1 + bent) + residual.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, b = ctx.saved_tensors
        wide, factor = x.float() + b.float(), math.sqrt(2 / math.pi)
        bent = torch.tanh(factor * wide * (1 + 0.044715 * wide * wide))
        slope = 0.5 * (1 + bent) + 0.5 * wide * (1 - bent * bent) * factor * (1 + 0.134145 * wide * wide)
        dx = gradient.float() * slope
        return dx.to(x.dtype), dx.sum(0).to(b.dtype), gradient


def _biased(x: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.gelu(x.float() + b.float(), approximate="tanh").to(x.dtype) + residual


rewrite("bias, gelu and residual in one, derived by hand", _biased, shapes((8, 20), (20,), (8, 20)))(_Biased.apply)


@rewrite("softmax along the rows, in two passes", lambda x: x.softmax(1), shapes((3, 20, 6)))
def along_rows(x: torch.Tensor) -> torch.Tensor:
    wide = x.float().transpose(1, 2)
    if not wide.shape[-1]:
        return x.softmax(1)
    most, total = torch.full_like(wide[..., :1], -math.inf).detach(), torch.zeros_like(wide[..., :1])
    for tile in wide.split(8, -1):
        now = torch.maximum(most, tile.detach().amax(-1, keepdim=True))
        base = now.masked_fill(now == -math.inf, 0.0)
        total, most = total * (most - base).exp() + (tile - base).exp().sum(-1, keepdim=True), now
    return ((wide - most).exp() / total).transpose(1, 2).to(x.dtype)


@rewrite("quick gelu, by the logarithm of its gate", lambda x: x * torch.sigmoid(1.702 * x), shapes((6, 30)))
def by_logarithm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * F.logsigmoid(1.702 * wide).exp()).to(x.dtype)


@rewrite("batch norm in training, channels last", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), shapes((8, 5, 6), (5,), (5,)))
def channels_last(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.shape[0] * x.shape[2] >= 2)
    rows = x.float().transpose(1, 2).reshape(-1, x.shape[1])
    off = rows - rows.mean(0)
    normed = off * torch.rsqrt(off.square().mean(0) + 1e-5) * w.float() + b.float()
    return normed.reshape(len(x), x.shape[2], x.shape[1]).transpose(1, 2).to(x.dtype)
