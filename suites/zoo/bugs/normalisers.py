"""Layers that normalise: their squares, their variances, and what they keep for the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Groups(nn.Module):
    """Group norm as it is written by hand: the squares are taken in the input's format, and added up in float32."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.weight = nn.Parameter(1 + 0.1 * normal(8, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.view(2, 4, -1)
        grouped = grouped.float() if self.wide else grouped
        mean = grouped.mean(-1, keepdim=True)
        square = (grouped - mean) * (grouped - mean)  # culprit: group-squares
        variance = square.mean(-1, keepdim=True, dtype=WIDE)
        normed = (grouped - mean).float() * torch.rsqrt(variance + 1e-5)
        return normed.view_as(x) * self.weight.float()[:, None]


def segmented(wide: bool) -> torch.Tensor:
    return Groups(wide)((180 * normal(2, 8, 64)).to(HALF))


def skipped(wide: bool) -> torch.Tensor:
    """A stream and its skip are added and divided by their root mean square, whose sum is kept in half."""
    x, skip = (60 * normal(4, 256)).to(HALF), (20 * normal(4, 256, seed=1)).to(HALF)
    total = x + skip
    total = total.float() if wide else total
    squares = total.square().sum(1, keepdim=True)  # culprit: skip-norm
    return (total / (squares / 256 + 1e-6).sqrt()).float()


def padded(wide: bool) -> torch.Tensor:
    """The variance and an epsilon of 1e-12 are cast to half together; a row of padding has a variance of zero."""
    x = normal(6, 32)
    x[4:] = 0.25
    variance = x.var(1, keepdim=True, unbiased=False) + 1e-12
    variance = variance if wide else variance.to(HALF)  # culprit: lost-epsilon
    return (x - x.mean(1, keepdim=True)) * torch.rsqrt(variance.float())


def batch_statistics(two_passes: bool) -> torch.Tensor:
    """A batch norm whose variance is the mean square less the squared mean, of channels about five with a spread of a tenth."""
    x = (5 + 0.1 * normal(16, 4, 64)).to(LOW)
    mean = x.mean((0, 2), keepdim=True)
    if two_passes:
        variance = (x.float() - x.float().mean((0, 2), keepdim=True)).square().mean((0, 2), keepdim=True)
    else:
        variance = (x * x).mean((0, 2), keepdim=True) - mean * mean  # culprit: channel-variance
    return 1 / (variance.float() + 1e-5).sqrt()


class Kept(torch.autograd.Function):
    """Layer norm that keeps its mean and its reciprocal deviation for the way back, in half."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        mean, deviation = x.float().mean(1, keepdim=True), torch.rsqrt(x.float().var(1, keepdim=True, unbiased=False) + 1e-5)
        ctx.save_for_backward(x, mean.to(dtype), deviation.to(dtype))  # culprit: saved-statistics
        return ((x.float() - mean) * deviation).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, mean, deviation = ctx.saved_tensors
        normed, g = (x.float() - mean.float()) * deviation.float(), gradient.float()  # culprit: saved-statistics
        inner = g - g.mean(1, keepdim=True) - normed * (g * normed).mean(1, keepdim=True)
        return (inner * deviation.float()).to(x.dtype), None


def layer_gradient(dtype: torch.dtype) -> torch.Tensor:
    x = (40 + 0.1 * normal(8, 64)).to(HALF).float().requires_grad_()  # all of which half holds
    (Kept.apply(x, dtype).float().square() * (1 + 0.3 * normal(8, 64, seed=1))).sum().backward()
    return x.grad.float()


BUGS = (
    Bug("group-squares", "neuroneural/brainchop-cli#56", ("overflow",), "aten.mul.Tensor", lambda: segmented(False), lambda: segmented(True),
        module="Groups"),
    Bug("skip-norm", "microsoft/onnxruntime#29043", ("overflow",), "aten.pow.Tensor_Scalar", lambda: skipped(False), lambda: skipped(True)),
    Bug("lost-epsilon", "deepspeedai/DeepSpeed#581", ("underflow", "vanished-constant"), "aten._to_copy.default", lambda: padded(False),
        lambda: padded(True)),
    Bug("channel-variance", "tenstorrent/tt-metal#45968", ("cancellation",), "aten.sub.Tensor", lambda: batch_statistics(False),
        lambda: batch_statistics(True)),
    Bug("saved-statistics", "flagos-ai/FlagGems#221", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: layer_gradient(HALF),
        lambda: layer_gradient(WIDE)),
)  # fmt: skip
