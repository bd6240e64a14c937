"""Weights: a preconditioner in the weights' format, a threshold that should learn, a norm kept by a mask, a scale's bound, a power by logarithms."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Preconditioner:
    """A moving average of gradients' outer products, and its inverse root."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.average = torch.zeros(width, width, dtype=dtype)

    def update(self, gradient: torch.Tensor) -> None:
        outer = gradient @ gradient.T  # culprit: preconditioner-of-low-weights
        self.average.lerp_(outer.to(self.average.dtype), 0.05)  # culprit: preconditioner-of-low-weights

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        values, basis = torch.linalg.eigh(self.average.float())  # culprit: preconditioner-of-low-weights
        return basis @ (values.clamp(min=0) + 1e-8).rsqrt().diag() @ basis.T @ gradient.float()  # culprit: preconditioner-of-low-weights


def preconditioned(dtype: torch.dtype) -> torch.Tensor:
    """The step of a weight in bfloat16, after 80 gradients whose directions differ in size by a factor of a thousand."""
    basis, sizes = torch.linalg.qr(normal(12, 12))[0], torch.logspace(0, -3, 12)[:, None]
    state = Preconditioner(12, dtype)
    for seed in range(80):
        gradient = ((basis @ (sizes * normal(12, 20, seed=seed + 1)) * 64).round() / 64).to(LOW)
        state.update(gradient.to(dtype))
    return state.apply(gradient)


def thresholds(dtype: torch.dtype) -> torch.Tensor:
    """How far the thresholds of a sparse autoencoder move in 60 steps of Adam."""
    start = torch.full((64,), 1.1015625)
    threshold = nn.Parameter(start.clone().to(dtype))
    optimizer = torch.optim.Adam([threshold], lr=2e-4)
    for seed in range(60):
        hidden = normal(32, 64, seed=seed).abs() + 0.5
        gate = torch.sigmoid((hidden - threshold.float()) / 0.1)
        (gate.sum(-1).mean() / 64).backward()
        optimizer.step()  # culprit: threshold-that-should-learn
        optimizer.zero_grad()
    return threshold.detach().float() - start


def rescaled(weight: torch.Tensor, keep: torch.Tensor, single: bool) -> torch.Tensor:
    """The weights that are kept, scaled so that their sum of sizes is what it was."""
    kept = weight * keep
    if single:
        return (kept.float() * (weight.float().abs().sum() / kept.float().abs().sum())).to(weight.dtype)
    return kept * (weight.abs().sum() / kept.abs().sum())  # culprit: norm-kept-by-a-mask


def sparsified(single: bool) -> torch.Tensor:
    """Half of a weight of 400 by 400 in half, before it is merged with others."""
    weight = (1 + 0.2 * normal(400, 400)).to(HALF)
    return rescaled(weight, (uniform(400, 400, seed=1) < 0.5).to(HALF), single).float()


def quantised(weight: torch.Tensor, bounded: bool) -> torch.Tensor:
    """A weight in 8 bits with a scale for each row, as it is read again."""
    scales = weight.abs().amax(1, keepdim=True) / 127  # culprit: bound-that-was-not-kept
    if bounded:
        scales = scales.float().clamp(min=1e-5)
    else:
        scales.float().clamp_(min=1e-5)
    return (weight / scales).round().clamp(-127, 127) * scales  # culprit: bound-that-was-not-kept


def smoothed(bounded: bool) -> torch.Tensor:
    """A smoothed weight in half with four rows that are all but nought."""
    rows = torch.where(torch.arange(32) % 8 == 3, 1e-6, 0.05)[:, None]
    return quantised((rows * normal(32, 48)).to(HALF), bounded).float()


def power(base: torch.Tensor, exponent: torch.Tensor, single: bool) -> torch.Tensor:
    """Base to the exponent, by logarithms to the base of two."""
    if single:
        return (exponent.float() * base.float().log2()).exp2().to(base.dtype)
    return (exponent * base.log2()).exp2()  # culprit: power-by-logarithms


def powers(single: bool) -> torch.Tensor:
    """Powers of 40 to 120 of numbers near one, in bfloat16."""
    return power((0.8 + 0.5 * uniform(60)).to(LOW), (40 + 8 * (torch.arange(60) % 11)).to(LOW), single).float()


BUGS = (
    Bug("preconditioner-of-low-weights", "kozistr/pytorch_optimizer#335", ("amplified-rounding", "absorption", "accumulated-drift", "local-drift"),
        "aten.lerp_.Scalar", lambda: preconditioned(LOW), lambda: preconditioned(WIDE)),
    Bug("threshold-that-should-learn", "decoderesearch/SAELens#728", ("lost-update", "absorption"), "", lambda: thresholds(LOW),
        lambda: thresholds(WIDE), phase="optimizer"),
    Bug("norm-kept-by-a-mask", "arcee-ai/mergekit#704", ("overflow",), "aten.sum.default", lambda: sparsified(False), lambda: sparsified(True)),
    Bug("bound-that-was-not-kept", "NVIDIA/TensorRT-LLM#2485", ("underflow", "nan", "overflow"), "aten.div.Tensor", lambda: smoothed(False),
        lambda: smoothed(True)),
    Bug("power-by-logarithms", "tenstorrent/tt-metal#52675", ("amplified-rounding",), "aten.log2.default", lambda: powers(False),
        lambda: powers(True)),
)  # fmt: skip
