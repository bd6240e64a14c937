"""A ninth frozen set of healthy kernels: activations, norms, several outputs, other strides. Written and committed before any was tried."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _columns(x: torch.Tensor, dims: int = 2) -> None:
    need(x.dim() == dims and x.shape[-1])


class _BiasGelu(torch.autograd.Function):
    """gelu of a sum; the way back computes the sum again, and adds the bias' gradient up in groups of four rows, the last group first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1:] == b.shape)
        ctx.save_for_backward(x, b)
        wide = x.float() + b.float()
        return (0.5 * wide * torch.special.erfc(-wide * math.sqrt(0.5))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, b = ctx.saved_tensors
        wide = x.float() + b.float()
        bell = (-0.5 * wide * wide).exp() / math.sqrt(2 * math.pi)
        given = gradient.float() * (0.5 * torch.special.erfc(-wide * math.sqrt(0.5)) + wide * bell)
        total = torch.zeros(b.shape)
        for some in reversed(given.split(4)):
            total += some.sum(0)
        return given.to(x.dtype), total.to(b.dtype)


rewrite("gelu and bias in one, computed again on the way back", lambda x, b: F.gelu(x.float() + b.float()).to(x.dtype),
        shapes((11, 6), (6,)))(_BiasGelu.apply)  # fmt: skip


@rewrite("gelu by tanh, as a sigmoid", lambda x: F.gelu(x.float(), approximate="tanh").to(x.dtype), shapes((6, 15)))
def as_sigmoid(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(math.sqrt(8 / math.pi) * wide * (1 + 0.044715 * wide * wide))).to(x.dtype)


@rewrite("log softmax, in float64", lambda x: x.log_softmax(-1), shapes((5, 23)))
def in_float64(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    return x.double().log_softmax(-1).to(x.dtype)


@rewrite(
    "rms norm of any format, its result in float16", lambda x, w: F.rms_norm(x.float(), x.shape[-1:], w.float(), 1e-5).half(), shapes((5, 18), (18,))
)
def to_half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1:] == w.shape and len(w))
    wide = x.float()
    squares = functools.reduce(torch.add, [part.square().sum(-1, keepdim=True) for part in wide.split(7, -1)])
    return (wide / (squares / len(w) + 1e-5).sqrt() * w.float()).half()


def _with_statistics(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = x.float()
    mean, variance = wide.mean(-1), wide.var(-1, correction=0)
    scale = (variance + 1e-5).rsqrt()
    return ((wide - mean[..., None]) * scale[..., None] * w.float()).to(x.dtype), mean.detach(), scale.detach()


class _Statistics(torch.autograd.Function):
    """Layer norm that gives its mean and its scale too, both in float32 and without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        need(x.dim() == 2 and x.shape[1:] == w.shape and len(w))
        wide, mean, spread = x.float(), torch.zeros(len(x)), torch.zeros(len(x))
        count = 0
        for part in wide.split(5, -1):
            middle, size = part.mean(-1), part.shape[-1]
            apart = middle - mean
            spread = spread + (part - middle[:, None]).square().sum(-1) + apart.square() * (count * size / (count + size))
            mean, count = mean + apart * (size / (count + size)), count + size
        scale = torch.rsqrt(spread / count + 1e-5)
        ctx.save_for_backward(x, w, mean, scale)
        ctx.mark_non_differentiable(mean, scale)
        return ((wide - mean[:, None]) * scale[:, None] * w.float()).to(x.dtype), mean, scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, w, mean, scale = ctx.saved_tensors
        normed, wide = (x.float() - mean[:, None]) * scale[:, None], gradient.float()
        given = wide * w.float()
        dx = scale[:, None] * (given - given.mean(-1, keepdim=True) - normed * (given * normed).mean(-1, keepdim=True))
        return dx.to(x.dtype), torch.einsum("rc,rc->c", wide, normed).to(w.dtype)


rewrite("layer norm, its mean and its scale, parts merged", _with_statistics, shapes((6, 17), (17,)))(_Statistics.apply)


@rewrite("group norm and silu, channels last", lambda x, w, b: F.silu(F.group_norm(x.float(), 2, w.float(), b.float())).to(x.dtype),
         shapes((2, 6, 4, 5), (6,), (6,)))  # fmt: skip
def channels_last(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and not (x.shape[1] % 2) and w.shape == b.shape and w.shape == x.shape[1:2] and x.numel())
    wide = x.float().permute(0, 2, 3, 1).contiguous().unflatten(-1, (2, x.shape[1] // 2))
    apart = wide - wide.mean((1, 2, 4), keepdim=True)
    normed = (apart / (apart.square().mean((1, 2, 4), keepdim=True) + 1e-5).sqrt()).flatten(-2)
    made = normed * w.float() + b.float()
    return (made * made.sigmoid()).to(x.dtype).permute(0, 3, 1, 2)


def _batch(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = x.float()
    mean, variance = wide.mean(0), wide.var(0, correction=0)
    return ((wide - mean) * (variance + 1e-3).rsqrt() * w.float() + b.float()).to(x.dtype), mean, variance


@rewrite("batch norm with its mean and its variance, sums of two halves", _batch, shapes((9, 7), (7,), (7,)))
def two_halves(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and len(x) >= 2 and w.shape == x.shape[1:] and w.shape == b.shape)
    one, two = x.float().tensor_split(2)
    mean = (one.sum(0) + two.sum(0)) / len(x)
    variance = ((one - mean).square().sum(0) + (two - mean).square().sum(0)) / len(x)
    factor = w.float() / (variance + 1e-3).sqrt()
    return ((x.float() - mean) * factor + b.float()).to(x.dtype), mean, variance


class _Packed(torch.autograd.Function):
    """swiglu of a tensor that holds gate and value side by side; the gradient is written into one buffer of that shape."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() and not (x.shape[-1] % 2))
        ctx.save_for_backward(x)
        gate, value = x.float().chunk(2, -1)
        return (gate / (1 + (-gate).exp()) * value).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        (gate, value), held = x.float().chunk(2, -1), torch.empty_like(x)
        half, open_, wide = x.shape[-1] // 2, torch.sigmoid(gate), gradient.float()
        held[..., :half] = (wide * value * (open_ + gate * open_ * (1 - open_))).to(x.dtype)
        held[..., half:] = (wide * gate * open_).to(x.dtype)
        return held


rewrite("swiglu of one tensor, its gradient in one buffer", lambda x: (F.silu(x.float().chunk(2, -1)[0]) * x.float().chunk(2, -1)[1]).to(x.dtype),
        shapes((5, 14)))(_Packed.apply)  # fmt: skip


@rewrite("linear, padded to sixteens and given back transposed", lambda x, w, b: F.linear(x.float(), w.float(), b.float()).to(x.dtype),
         shapes((5, 19), (7, 19), (7,)))  # fmt: skip
def padded(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == w.shape[1] and b.shape == w.shape[:1])
    whole = [-(-size // 16) * 16 for size in (len(x), len(w), x.shape[1])]
    rows = F.pad(x.float(), (0, whole[2] - x.shape[1], 0, whole[0] - len(x)))
    columns = F.pad(w.float(), (0, whole[2] - x.shape[1], 0, whole[1] - len(w)))
    made = torch.zeros(whole[1], whole[0])
    for some in range(0, whole[2], 16):
        made = made + columns[:, some : some + 16] @ rows[:, some : some + 16].T
    return (made[: len(w), : len(x)] + b.float()[:, None]).to(x.dtype).T


@rewrite("scores capped, by expm1", lambda x: (5 * (x.float() / 5).tanh()).to(x.dtype), shapes((6, 12)))
def by_expm1(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    power = torch.expm1(-0.4 * wide.abs())
    return (5 * wide.sign() * -power / (2 + power)).to(x.dtype) if not x.requires_grad else (5 * (0.2 * wide).tanh()).to(x.dtype)


@rewrite("huber loss of each element, by clamps", lambda x, y: F.huber_loss(x.float(), y.float(), reduction="none", delta=0.7).to(x.dtype),
         shapes((5, 9), (5, 9)))  # fmt: skip
def by_clamps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = x.float() - y.float()
    near = apart.clamp(-0.7, 0.7)
    return (near * (apart - 0.5 * near)).to(x.dtype)
