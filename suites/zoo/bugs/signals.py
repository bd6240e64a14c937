"""Sums, squares and exponentials of long recordings, images, rays and ranks, which leave float16."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

MECHANISM = "overflow"
HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Standardised(nn.Module):
    """Mean and deviation of 90000 valid frames: their number alone is Inf in half."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        h, m = (x.float(), valid.float()) if self.wide else (x, valid)
        count = m.sum(-1, keepdim=True)  # culprit: frame-count
        mean = (h * m).sum(-1, keepdim=True) / count
        return ((h - mean) / ((((h - mean) * m).square().sum(-1, keepdim=True) / count).sqrt() + 1e-3)).to(x.dtype)


def recording(wide: bool) -> dict[str, Any]:
    valid = torch.ones(1, 1, 100_000)
    valid[..., 90_000:] = 0
    return {"model": Standardised(wide), "inputs": ((4 + 2 * normal(1, 2, 100_000)).half().float(), valid), "precision": "16-true"}


class Spectrum(nn.Module):
    """A Fourier transform as a product, its square, and a logarithm: 460 squared is more than 65504."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        angle = 2 * math.pi * torch.outer(torch.arange(1024.0), torch.arange(33.0)) / 1024
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        real, imaginary = frames @ self.cosine, frames @ self.sine
        if self.wide:
            real, imaginary = real.float(), imaginary.float()
        power = real**2 + imaginary**2  # culprit: power-spectrum
        return power.clamp(min=1e-3).log10()[:, 20]  # one bin is loud


def spectrum(wide: bool) -> dict[str, Any]:
    wave = 0.9 * torch.sin(2 * math.pi * 20 * torch.arange(2048.0) / 1024) + 0.05 * normal(2048)
    return {"model": Spectrum(wide), "inputs": (wave.reshape(2, 1024),), "precision": "16-true"}


class Rays(nn.Module):
    """Densities as exponentials; samples behind the far plane have a length of zero, by which Inf is multiplied."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, raw: torch.Tensor, colour: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        density = torch.exp(raw.float().clamp(max=15) if self.wide else raw)  # culprit: ray-density
        alpha = 1 - torch.exp(-density * length)
        return (alpha * torch.cumprod(1 - alpha + 1e-4, -1) * colour).sum(-1)


def rays(wide: bool) -> dict[str, Any]:
    length = torch.full((3, 24), 2.0**-5)
    length[:, -2:] = 0
    given = (torch.linspace(-4, 13, 24).repeat(3, 1).half().float(), uniform(3, 24).half().float(), length)
    return {"model": Rays(wide), "inputs": given, "precision": "16-true"}


class Triangle(nn.Module):
    """A triangle update: a product over residues of two projections, before a norm that would have undone any scale."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scaled, self.norm = scaled, nn.LayerNorm(8)
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            self.a.weight.copy_(100 * normal(8, 8))
            self.b.weight.copy_(100 * normal(8, 8, seed=1))

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        a, b = self.a(pair).permute(2, 0, 1), self.b(pair).permute(2, 0, 1)
        if self.scaled:
            a, b = a / a.float().std().to(a.dtype), b / b.float().std().to(b.dtype)
        return self.norm((a @ b.transpose(-1, -2)).permute(1, 2, 0))  # culprit: triangle-product


def triangles(scaled: bool) -> dict[str, Any]:
    return {"model": Triangle(scaled), "inputs": normal(40, 40, 8).half().float(), "precision": "16-mixed"}


def triangle(scaled: bool) -> torch.Tensor:
    with torch.autocast("cpu", dtype=HALF):
        return Triangle(scaled)(triangles(scaled)["inputs"]).float()


def style_loss(divided_first: bool) -> torch.Tensor:
    """Gram matrices of a picture's features under autocast, divided by their size when they are Inf already: Inf - Inf."""
    losses = []
    for seed in range(2):
        features = torch.relu(5 + normal(16, 4096, seed=seed))
        with torch.autocast("cpu", dtype=HALF):
            if divided_first:
                features = features / math.sqrt(features.numel())
            gram = features @ features.T  # culprit: gram-matrix
        losses.append(gram.float() if divided_first else gram.float() / features.numel())
    return functional.l1_loss(losses[0], 1.1 * losses[1])


def all_reduced(divided_first: bool) -> torch.Tensor:
    """Gradients of 64 ranks, sent and added in half, and divided by 64 on arrival."""
    sent = [(2000 * (1 + 0.1 * normal(4, seed=rank)) / (64 if divided_first else 1)).half() for rank in range(64)]
    total = sent[0]
    for each in sent[1:]:
        total = total + each  # culprit: compressed-all-reduce
    return total.float() if divided_first else total.float() / 64


def clipped(wide: bool) -> torch.Tensor:
    """Norms of shards, squared and added: Inf, and gradients divided by Inf are zero. The step does nothing."""
    shards = [(150 * normal(1000, seed=seed)).half() for seed in range(2)]
    total = torch.zeros((), dtype=WIDE if wide else HALF)
    for shard in shards:
        total = total + (shard.float() if wide else shard).norm() ** 2  # culprit: norm-of-shards
    return torch.cat(shards) * (1 / (total.sqrt() + 1e-6)).to(HALF)


def unbiased(wide: bool) -> torch.Tensor:
    """Bessel's n / (n - 1) of 70000 rows: Inf over Inf."""
    x = (2 * normal(70_000, 2)).half()
    n = torch.tensor(70_000.0).to(WIDE if wide else x.dtype)  # culprit: bessels-factor
    return x.float().var(0, correction=0) * (n / (n - 1)).float()  # culprit: bessels-factor


def average(wide: bool) -> torch.Tensor:
    """A mean as a sum over a number: 160000 over 4096."""
    x = torch.full((4096,), 40.0).half()
    return (x.float() if wide else x).sum() / 4096  # culprit: sum-over-number


def pruned(size: float) -> torch.Tensor:
    """A key that no query attends to, made by dividing -1e5 by a small square: some of its numbers are -Inf, some Inf."""
    queries = 0.05 * normal(6, 32)
    queries[:, 0], queries[:, 1] = 0.12, 0.1
    queries, keys = queries.half(), normal(10, 32, seed=1).half()
    y = queries.float().mean(0) if size < 1e4 else queries.mean(0)
    fake = -size * y / y.norm() ** 2  # culprit: unattended-key
    keys[2] = fake.half()
    return torch.softmax(queries @ keys.T, -1)


def at_half(given: dict[str, Any]) -> torch.Tensor:
    return given["model"].half()(*(each.half() for each in given["inputs"]))


BUGS = (
    Bug("frame-count", "vadimkantorov/convasr#73", ("overflow",), "aten.sum.dim_IntList", lambda: at_half(recording(False)),
        lambda: at_half(recording(True)), module="Standardised", measured=recording),
    Bug("power-spectrum", "adobe-research/convmelspec#3", ("overflow",), "aten.pow.Tensor_Scalar", lambda: at_half(spectrum(False)),
        lambda: at_half(spectrum(True)), module="Spectrum", measured=spectrum),
    Bug("ray-density", "nerfstudio-project/nerfstudio#104", ("overflow",), "aten.exp.default", lambda: at_half(rays(False)),
        lambda: at_half(rays(True)), module="Rays", measured=rays),
    Bug("triangle-product", "aqlaboratory/openfold#295", ("overflow",), "aten.bmm.default", lambda: triangle(False), lambda: triangle(True),
        measured=triangles),
    Bug("gram-matrix", "NVIDIA/apex#973", ("overflow",), "aten.mm.default", lambda: style_loss(False), lambda: style_loss(True)),
    Bug("compressed-all-reduce", "pytorch/pytorch#57410", ("overflow",), "aten.add.Tensor", lambda: all_reduced(False),
        lambda: all_reduced(True)),
    Bug("norm-of-shards", "facebookresearch/fairscale#263", ("overflow",), "aten.pow.Tensor_Scalar", lambda: clipped(False),
        lambda: clipped(True)),
    Bug("bessels-factor", "tensorflow/tensorflow#30230", ("overflow",), "aten._to_copy.default", lambda: unbiased(False), lambda: unbiased(True)),
    Bug("sum-over-number", "pytorch/pytorch#91597", ("overflow",), "aten.sum.default", lambda: average(False), lambda: average(True)),
    Bug("unattended-key", "NVIDIA/kvpress#268", ("overflow",), "aten.div.Tensor", lambda: pruned(1e5), lambda: pruned(1e3)),
)  # fmt: skip
