"""Steps of optimizers and what is loaded before them: norms, moments, checkpoints."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def sharded_norm(wide: bool) -> torch.Tensor:
    """Each shard's norm is squared and summed over shards, in the gradients' format: 300 squared does not fit."""
    shards = [(20 * normal(256, seed=seed)).to(HALF) for seed in range(4)]
    total = torch.zeros((), dtype=WIDE if wide else HALF)
    for shard in shards:
        norm = shard.float().norm().to(total.dtype)
        total = total + norm**2  # culprit: shard-norms
    share = (1.0 / (total.sqrt().float() + 1e-6)).clamp(max=1.0)
    return torch.cat([shard.float() * share for shard in shards])


def zeroed(wide: bool) -> torch.Tensor:
    """The square of a finite gradient is Inf, so is the norm, and the coefficient is zero: the gradient is gone, and finite."""
    gradient = (300 + 30 * normal(16)).to(HALF)
    square = (gradient.float() if wide else gradient).square()  # culprit: zeroed-gradient
    norm = square.sum().sqrt()
    return (gradient * (1.0 / norm).to(HALF)).float()


class Moments:
    """Adam in the format of its weight: so are the numbers that it averages with."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        self.weight, self.dtype, self.steps = weight, dtype, 0
        self.mean, self.square = torch.zeros_like(weight, dtype=dtype), torch.zeros_like(weight, dtype=dtype)
        self.first, self.second = torch.tensor(0.9).to(dtype), torch.tensor(0.999).to(dtype)  # culprit: cast-averages

    def step(self, gradient: torch.Tensor) -> None:
        self.steps += 1
        self.mean = self.first * self.mean + (1 - self.first) * gradient.to(self.dtype)  # culprit: cast-averages
        self.square = self.second * self.square + (1 - self.second) * gradient.to(self.dtype).square()  # culprit: cast-averages
        mean, square = self.mean.float() / (1 - 0.9**self.steps), self.square.float() / (1 - 0.999**self.steps)
        self.weight -= 0.01 * mean / (square.sqrt() + 1e-8)  # culprit: cast-averages


def fitted(dtype: torch.dtype) -> torch.Tensor:
    weight = normal(32)
    moments = Moments(weight, dtype)
    for step in range(6):
        moments.step(weight - 1 + 0.1 * normal(32, seed=step))
    return weight


class Turning(nn.Module):
    """Angles of positions by a table of frequencies, which a checkpoint of float32 brings."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.zeros(8, dtype=dtype))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None] * self.frequencies.float()  # culprit: loaded-table
        return torch.cat([angles.sin(), angles.cos()], 1)


def resumed(dtype: torch.dtype) -> torch.Tensor:
    """What is loaded takes the format of what it is loaded into, without a word."""
    model = Turning(dtype)
    model.load_state_dict({"frequencies": 10000 ** (-torch.arange(8.0) / 8)})  # culprit: loaded-table
    return model(torch.arange(500.0, 520.0))


BUGS = (
    Bug("shard-norms", "facebookresearch/fairscale#263", ("overflow",), "aten.pow.Tensor_Scalar", lambda: sharded_norm(False),
        lambda: sharded_norm(True)),
    Bug("zeroed-gradient", "tracel-ai/burn#5699", ("overflow",), "aten.pow.Tensor_Scalar", lambda: zeroed(False), lambda: zeroed(True)),
    Bug("cast-averages", "FluxML/Optimisers.jl#215", ("amplified-rounding", "cancellation", "vanished-constant"), "aten._to_copy.default",
        lambda: fitted(LOW), lambda: fitted(WIDE)),
    Bug("loaded-table", "pytorch/pytorch#187138", ("amplified-rounding", "accumulated-drift"), "aten.copy_.default", lambda: resumed(LOW),
        lambda: resumed(WIDE),
        expected_miss="a frequency is rounded once, where a weight is loaded; that positions multiply its error by five hundred no op shows"),
)  # fmt: skip
