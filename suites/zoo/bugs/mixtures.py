"""Scores of two kinds, experts, spectra, histograms and fused adapters: what is added, multiplied or stored before it is scaled."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE, EIGHT = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn


class RelativeAttention(nn.Module):
    """Attention whose scores are of contents and of distances, each with a bias of its own."""

    def __init__(self, width: int, scaled_first: bool) -> None:
        super().__init__()
        self.width, self.scaled_first = width, scaled_first
        self.bias_u, self.bias_v = nn.Parameter(normal(width, seed=5)), nn.Parameter(normal(width, seed=6))

    def forward(self, q: torch.Tensor, k: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        scale = 1 / math.sqrt(self.width)
        before, after = (scale, 1.0) if self.scaled_first else (1.0, scale)
        contents = ((q + self.bias_u) * before) @ k.mT
        distances = ((q + self.bias_v) * before) @ places.mT
        scores = (contents + distances) * after  # culprit: contents-and-distances
        return torch.softmax(scores, -1) @ values


def heard(scaled_first: bool) -> torch.Tensor:
    """An encoder of speech in half: scores of contents are near fifty thousand, and those of distances come on top. NaN."""
    with torch.no_grad():
        layer = RelativeAttention(64, scaled_first).to(HALF)
        q, k = 22 * normal(2, 12, 64), 22 * normal(2, 12, 64, seed=1)
        k[:, :3] = q[:, :3] * 1.55
        places = 11 * normal(2, 12, 64, seed=2)
        places[:, :3] = 0.85 * q[:, :3]
        return layer(q.to(HALF), k.to(HALF), places.to(HALF), normal(2, 12, 64, seed=3).to(HALF)).float()


class Experts(nn.Module):
    """A layer of routed experts, whose sum is scaled, and of one that all tokens share."""

    def __init__(self, width: int, factor: float, divided: bool) -> None:
        super().__init__()
        self.factor, self.divided = factor, divided
        self.routed, self.shared = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.routed.weight.copy_(normal(width, width) / width**0.5)
            self.shared.weight.copy_(normal(width, width, seed=1) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.divided:
            out = self.routed(x) + self.shared(x) * (1 / self.factor)
        else:
            out = self.routed(x) * self.factor + self.shared(x)  # culprit: sixteen-times-the-experts
        wide = out.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def routed(divided: bool) -> torch.Tensor:
    """What a norm makes of experts in half whose outputs are scaled by sixteen and reach five thousand. NaN."""
    with torch.no_grad():
        return Experts(48, 16.0, divided).to(HALF)((1800 * normal(10, 48, seed=2)).to(HALF)).float()


class Echo:
    """A convolution by spectra, whose transforms are products with matrices, in half."""

    def __init__(self, size: int, scaled_first: bool) -> None:
        angles = 2 * math.pi * torch.outer(torch.arange(size), torch.arange(size)).remainder(size) / size
        self.size, self.scaled_first = size, scaled_first
        self.cos, self.sin = angles.cos().to(HALF), angles.sin().to(HALF)

    def __call__(self, signal: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        if self.scaled_first:
            signal = signal / self.size
        a, b = signal @ self.cos, -(signal @ self.sin)
        c, d = kernel @ self.cos, -(kernel @ self.sin)
        real, imaginary = a * c - b * d, a * d + b * c  # culprit: echo-of-a-tone
        out = real @ self.cos - imaginary @ self.sin  # culprit: echo-of-a-tone
        return out if self.scaled_first else out / self.size


def echoed(scaled_first: bool) -> torch.Tensor:
    """The echo of two tones of loudness four in a room of 256 samples; the product of their spectra has no number in half. Inf or NaN."""
    time = torch.arange(256)
    tones = 4 * torch.sin(2 * math.pi * 9 * time / 256) + 3 * torch.cos(2 * math.pi * 31 * time / 256) + 0.2 * normal(256)
    room = torch.exp(-time / 90) * (1.5 + torch.cos(2 * math.pi * 9 * time / 256) + 0.3 * normal(256, seed=1))
    return Echo(256, scaled_first)(tones.to(HALF), (2 * room).to(HALF)).float()


def city_block(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Distances along the axes between all of one kind and all of another."""
    return (first[:, None] - second[None]).abs().sum(-1)  # culprit: histograms-of-pictures


def between_histograms(dtype: torch.dtype) -> torch.Tensor:
    """Distances between histograms of 4096 colours of pictures, which are kept in half. Inf."""
    first, second = (60 * uniform(5, 4096).square()).to(HALF), (60 * uniform(4, 4096, seed=1).square()).to(HALF)
    return city_block(first.to(dtype), second.to(dtype)).float()


def fused(weight: torch.Tensor, scale: torch.Tensor, change: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """A weight of eight bits with an adapter's change, in the format that it is kept in."""
    new = weight.float() * scale + change
    if stored == EIGHT:
        return (new / scale).to(EIGHT).float() * scale  # culprit: adapter-in-eight-bits
    return new.to(stored).float()


def adapted(stored: torch.dtype) -> torch.Tensor:
    """What an adapter adds to a layer's answers to prompts that it has learnt; eight bits hold hardly any of it. Off by 80 %."""
    plain = 0.02 * normal(48, 96)
    scale = plain.abs().amax() / 448
    weight = (plain / scale).to(EIGHT)
    prompt = torch.sign(normal(96, seed=1))
    change = 2.5e-4 * torch.outer(torch.sign(normal(48, seed=2)), prompt)
    prompts = prompt + 0.05 * normal(8, 96, seed=3)
    return prompts @ fused(weight, scale, change, stored).T - prompts @ (weight.float() * scale).T


BUGS = (
    Bug("contents-and-distances", "wenet-e2e/wenet#891", ("overflow",), "aten.add.Tensor", lambda: heard(False), lambda: heard(True),
        module="RelativeAttention"),
    Bug("sixteen-times-the-experts", "vllm-project/vllm#13232", ("overflow",), "aten.mul.Tensor", lambda: routed(False), lambda: routed(True)),
    Bug("echo-of-a-tone", "DTolm/VkFFT#66", ("overflow",), "aten.mm.default", lambda: echoed(False), lambda: echoed(True)),
    Bug("histograms-of-pictures", "Lightning-AI/torchmetrics#1380", ("overflow",), "aten.sum.dim_IntList", lambda: between_histograms(HALF),
        lambda: between_histograms(WIDE)),
    Bug("adapter-in-eight-bits", "ml-explore/mlx-lm#1564", ("absorption", "amplified-rounding", "cancellation", "coarse-recipe"),
        "aten._to_copy.default", lambda: adapted(EIGHT), lambda: adapted(WIDE)),
)  # fmt: skip
