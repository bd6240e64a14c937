"""Diffusion steps and policies: times, latents and probabilities that a loop hands on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Denoiser(nn.Module):
    """A network that is told the time as 32 sines and cosines, the fastest of one radian a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.told, self.seen = nn.Parameter(0.4 * normal(32, 32)), nn.Parameter(0.2 * normal(8, 32, seed=1))
        self.out = nn.Parameter(0.3 * normal(32, 8, seed=2))

    def forward(self, x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        angles = timestep[:, None].float() * torch.exp(-math.log(10_000.0) * torch.arange(16) / 16)
        told = torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype) @ self.told
        return functional.silu(x @ self.seen + told) @ self.out


def generated(dtype: torch.dtype, t_scale: float = 1000.0) -> torch.Tensor:
    """Eight steps of a flow. The time that the network is told is sigma times 1000, which bfloat16 rounds to a multiple of four."""
    network, x = Denoiser().to(LOW), normal(4, 8, seed=3)
    sigmas = torch.linspace(1.0, 0.0, 9) ** 0.7
    for sigma, following in itertools.pairwise(sigmas):
        timestep = (sigma.float() * t_scale).to(dtype)  # culprit: generation-timesteps
        with torch.no_grad():
            velocity = network(x.to(LOW), timestep.expand(4)).float()
        x = x + (following - sigma) * velocity
    return x


def likelihood(taken: torch.Tensor, mean: torch.Tensor, spread: float) -> torch.Tensor:
    return (-((taken.float() - mean) ** 2) / (2 * spread**2) - math.log(spread)).mean(-1)


def replayed(rounded_first: bool, spread: float = 0.01) -> torch.Tensor:
    """The ratio of a policy to itself: a sampler's steps are kept in bfloat16, and their likelihood is taken again from what was kept."""
    weight, latents, noise = 0.2 * normal(16, 16), normal(8, 16, seed=1), normal(6, 8, 16, seed=2)
    kept, log_probs = [latents.to(LOW)], []
    for step in range(6):
        mean = kept[-1].float() - 0.1 * torch.tanh(kept[-1].float() @ weight)
        following = mean + spread * noise[step]
        if rounded_first:
            following = following.to(LOW)
        log_probs.append(likelihood(following, mean, spread))
        kept.append(following.to(LOW))  # culprit: replayed-latents
    ratios = []
    for step in range(6):
        mean = kept[step].float() - 0.1 * torch.tanh(kept[step].float() @ weight)
        ratios.append(torch.exp(likelihood(kept[step + 1], mean, spread) - log_probs[step]))  # culprit: replayed-latents
    return torch.stack(ratios)


class Actor(nn.Module):
    """The entropy of a Gaussian policy that has become sure of some of its actions: the square of a deviation of 1e-4 is zero in half."""

    def __init__(self, widened: bool) -> None:
        super().__init__()
        self.widened = widened
        self.head = nn.Linear(12, 4)
        with torch.no_grad():
            self.head.weight.copy_(0.1 * normal(4, 12))
            self.head.bias.copy_(torch.tensor([-1.0, -3.0, -6.0, -9.5]))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        std = self.head(observation).exp()
        if self.widened:
            std = std.float()
        return (0.5 * (torch.log(2 * math.pi * (std + 1e-8) ** 2) + 1)).mean(-1)  # culprit: entropy-floor


def actor(widened: bool) -> dict[str, Any]:
    return {"model": Actor(widened), "inputs": (normal(16, 12, seed=1),), "precision": "16-true"}


def entropies(widened: bool) -> torch.Tensor:
    arguments = actor(widened)
    return arguments["model"].half()(arguments["inputs"][0].half())


def fused_log_probs(hidden: torch.Tensor, vocabulary: torch.Tensor, labels: torch.Tensor, kept: bool, chunk: int = 16) -> torch.Tensor:
    """Log-probabilities of tokens a chunk at a time, computed in float32; what holds them is made like the hidden states."""
    log_probs = torch.zeros(labels.shape) if kept else hidden.new_zeros(labels.shape)  # culprit: fused-log-probs
    for start in range(0, len(labels), chunk):
        part = slice(start, start + chunk)
        logits = (hidden[part] @ vocabulary.T).float()
        log_probs[part] = torch.log_softmax(logits, -1).gather(-1, labels[part, None]).squeeze(-1)  # culprit: fused-log-probs
    return log_probs


def importance(kept: bool) -> torch.Tensor:
    hidden, vocabulary = normal(64, 32).to(LOW), (0.5 * normal(500, 32, seed=1)).to(LOW)
    moved = (vocabulary.float() * 1.01).to(LOW)
    labels = (torch.arange(64) * 7) % 500
    new, old = (fused_log_probs(hidden, each, labels, kept) for each in (moved, vocabulary))
    return torch.exp(new - old).float()


BUGS = (
    Bug("generation-timesteps", "kohya-ss/musubi-tuner#729", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: generated(LOW), lambda: generated(WIDE)),
    Bug("entropy-floor", "kscalelabs/minppo#19", ("underflow", "vanished-constant", "overflow", "nan"), "aten.pow.Tensor_Scalar",
        lambda: entropies(False), lambda: entropies(True), measured=actor),
    Bug("replayed-latents", "X-GenGroup/Flow-Factory#61", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: replayed(False), lambda: replayed(True)),
    Bug("fused-log-probs", "verl-project/verl#5662", ("amplified-rounding", "cancellation"), "aten.copy_.default",
        lambda: importance(False), lambda: importance(True)),
)  # fmt: skip
