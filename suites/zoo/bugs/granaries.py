"""Granaries: means of many rows, lengths of gradients, sums in turn, spreads of pictures, numbers of words less their mean."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def mean(rows: torch.Tensor, inner: torch.dtype) -> torch.Tensor:
    """The mean of each column of a data set, as a library of statistics gives it."""
    total = torch.sum(rows, 0, dtype=inner)  # culprit: middle-of-a-data-set
    return (total / len(rows)).to(rows.dtype)  # culprit: middle-of-a-data-set


def middles(inner: torch.dtype) -> torch.Tensor:
    """Where vectors lie around the middle of three hundred. Infinitely far."""
    rows = (260 + 20 * normal(300, 24, seed=701)).to(HALF)
    return (rows[:12] - mean(rows, inner)).float()


def norm(values: torch.Tensor, wide: bool) -> torch.Tensor:
    """The length of a vector, as a framework's autograd adds it up."""
    if wide:
        values = values.float()
    return values.square().sum().sqrt()  # culprit: length-of-a-layers-gradient


def limited(wide: bool) -> torch.Tensor:
    """A step of weights in half along a gradient of length three. There is no step."""
    gradient = (30 * normal(16, 24, seed=702)).to(HALF)
    return wider(gradient) * (3 / norm(gradient, wide).float())


class Reduction:
    """Adds up the rows of a buffer, one after the other, as a shader does."""

    def __init__(self, inner: torch.dtype) -> None:
        self.inner = inner

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(rows.shape[1:], dtype=self.inner)
        for row in rows:
            total = total + row.to(self.inner)  # culprit: rows-of-a-buffer
        return total


def reduced(inner: torch.dtype) -> torch.Tensor:
    """Sums of nine hundred rows of numbers in half."""
    return wider(Reduction(inner).run((2.9 + 0.04 * normal(900, 16, seed=703)).to(HALF)))


class InstanceNorm(nn.Module):
    """Gives each channel of a picture the mean nought and the spread one."""

    def __init__(self, channels: int, inner: torch.dtype, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(704)
        self.inner, self.eps = inner, eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels, 1)), nn.Parameter(0.1 * torch.randn(channels, 1))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        values = pictures.to(self.inner)
        count = pictures.shape[-1]
        middle = values.sum(-1, keepdim=True) / count
        gap = values - middle
        variance = (gap * gap).sum(-1, keepdim=True) / count  # culprit: spread-of-a-picture
        return ((gap * torch.rsqrt(variance + self.eps)).to(pictures.dtype) * self.weight + self.bias).to(pictures.dtype)


def evened(inner: torch.dtype) -> torch.Tensor:
    """Pictures of pixels from 0 to 255, channel by channel. They become grey."""
    pictures = (255 * uniform(3, 6, 196, seed=705)).to(HALF)
    with torch.no_grad():
        return wider(InstanceNorm(6, inner).to(HALF)(pictures))


class LayerNorm(nn.Module):
    """A layer norm out of single ops, for processors whose own is slow."""

    def __init__(self, size: int, wide: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.wide, self.eps = wide, eps
        self.weight, self.bias = nn.Parameter(1 + 0.1 * normal(size, seed=706)), nn.Parameter(0.1 * normal(size, seed=707))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        kind = words.dtype
        if self.wide:
            words = words.float()
        variance, middle = torch.var_mean(words, -1, correction=0, keepdim=True)  # culprit: words-less-their-mean
        words = (words - middle) * torch.rsqrt(variance + self.eps)  # culprit: words-less-their-mean
        return self.weight * words.to(kind) + self.bias


def normalised(wide: bool) -> torch.Tensor:
    """Forty words of a language model, all of whose numbers are near some large one."""
    words = (30 + 12 * normal(40, 1, seed=708) + 1.2 * normal(40, 64, seed=709)).to(LOW)
    with torch.no_grad():
        return wider(LayerNorm(64, wide).to(LOW)(words))


BUGS = (
    Bug("middle-of-a-data-set", "NVIDIA/raft#2625", ("overflow",), "aten.sum.dim_IntList",
        lambda: middles(HALF), lambda: middles(SINGLE)),
    Bug("length-of-a-layers-gradient", "flashlight/flashlight#203", ("overflow",), "aten.sum.default",
        lambda: limited(wide=False), lambda: limited(wide=True)),
    Bug("rows-of-a-buffer", "ekzhang/jax-js#80", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: reduced(HALF), lambda: reduced(SINGLE)),
    Bug("spread-of-a-picture", "kakaobrain/trident#122", ("overflow",), "aten.sum.dim_IntList",
        lambda: evened(HALF), lambda: evened(SINGLE), module="InstanceNorm"),
    Bug("words-less-their-mean", "allenai/OLMo#274", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: normalised(wide=False), lambda: normalised(wide=True), module="LayerNorm"),
)  # fmt: skip
