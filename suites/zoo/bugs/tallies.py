"""Numbers that float32 is too short for: users by number, pressures and their spread."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


def user_means(dtype: torch.dtype) -> torch.Tensor:
    """The mean rating of each of 64 users, whose numbers reach the library as a column beside items and ratings."""
    users = 33_000_001 + torch.arange(64).repeat(6)
    items, ratings = (1000 * uniform(384)).long(), 1 + 4 * uniform(384, seed=1)
    triples = torch.stack([users.to(dtype), items.to(dtype), ratings.to(dtype)], 1)  # culprit: user-numbers
    rows = (triples[:, 0].long() - 33_000_001).clamp(0, 63)  # culprit: user-numbers
    total = torch.zeros(64, dtype=dtype).index_add_(0, rows, triples[:, 2])
    count = torch.zeros(64, dtype=dtype).index_add_(0, rows, torch.ones(384, dtype=dtype))
    return total / count.clamp_min(1)


class StandardScaler:
    """Mean and spread of each column of air, by which a model's state is scaled and back, in every step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.epsilon = dtype, 1e-12

    def fit(self, data: torch.Tensor) -> None:
        self.mean = data.mean(0).to(self.dtype)
        self.std = data.std(0).to(self.dtype) + self.epsilon

    def normalize(self, data: torch.Tensor) -> torch.Tensor:
        return (data.to(self.dtype) - self.mean) / self.std  # culprit: pressure-scaler

    def denormalize(self, data: torch.Tensor) -> torch.Tensor:
        return data * self.std + self.mean  # culprit: pressure-scaler


def stepped(dtype: torch.dtype) -> torch.Tensor:
    """What pressure, of 100000 Pa, changes by in 80 steps of a model that works on scaled numbers."""
    history = 100_000 + 0.05 * normal(200, 24).double()
    scaler = StandardScaler(dtype)
    scaler.fit(history)
    start = (100_000 + 0.05 * normal(24, seed=1).double()).to(dtype)  # culprit: pressure-scaler
    state = start
    for step in range(80):
        scaled = scaler.normalize(state)
        scaled = 0.98 * scaled + 0.05 * normal(24, seed=2 + step).to(dtype)
        state = scaler.denormalize(scaled)
    return state - scaler.mean


BUGS = (
    Bug("user-numbers", "PorkShoulderHolder/python-libmf#13", ("integer-rounding",), "aten._to_copy.default", lambda: user_means(WIDE),
        lambda: user_means(DOUBLE), precision="32-true"),
    Bug("pressure-scaler", "ai2cm/fv3net#1111", ("amplified-rounding", "cancellation", "accumulated-drift", "absorption"), "aten._to_copy.default",
        lambda: stepped(WIDE), lambda: stepped(DOUBLE), precision="32-true"),
)  # fmt: skip
