"""Clocks of simulators, recordings and samplers, kept or cast in a low format."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Network:
    """Services that hold a slot of a link each, for as long as is left of their holding time."""

    def __init__(self, services: int, time_dtype: torch.dtype) -> None:
        self.time_dtype = time_dtype
        self.departures = (64 + 16 * uniform(services)).to(time_dtype)

    def step(self, wait: torch.Tensor) -> None:
        """The next request arrives: all that is there has so much less to go, and what has gone is freed."""
        left = self.departures - wait.to(self.time_dtype)  # culprit: departures
        self.departures = torch.where(self.departures > 0, left, torch.zeros_like(left)).clamp_min(0)


def simulated(time_dtype: torch.dtype) -> torch.Tensor:
    network = Network(48, time_dtype)
    waits = -0.03 * (1 - uniform(1200, seed=1)).log()
    for wait in waits:
        network.step(wait)
    return network.departures.float()


def selections(dtype: torch.dtype) -> torch.Tensor:
    """Where detections begin in a day of recordings that stand in files of ten minutes, one after the other."""
    durations = [600.0 + (file % 3) for file in range(140)]
    rows = [(file, 10.0 * (file % 50)) for file in range(0, 140, 4)]
    accumulated, current, begins = torch.tensor(0, dtype=dtype), 0, []
    for file, offset in rows:
        while file != current:
            accumulated += torch.tensor(durations[current], dtype=dtype)  # culprit: recording-times
            current += 1
        begins.append(accumulated + torch.tensor(offset, dtype=dtype))  # culprit: recording-times
    return torch.stack(begins).float()


class Denoiser(nn.Module):
    """The embedding of a video model's timestep; the rollout's engine gives it sigmas, and this trainer has to give it the same."""

    SCALE = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 32)
        with torch.no_grad():
            self.project.weight.copy_(normal(32, 64) / 8)
            self.project.bias.zero_()

    def forward(self, timestep: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(32.0) / 32)
        angles = timestep.float()[:, None] * frequencies
        embedded = torch.cat([angles.cos(), angles.sin()], -1)
        return self.project(embedded.to(self.project.weight.dtype))


def replayed(before: bool) -> torch.Tensor:
    model = Denoiser().to(LOW)
    sigma = torch.linspace(1, 1 / 10, 10)
    sigma = 5 * sigma / (1 + 4 * sigma)
    with torch.no_grad():
        timestep = sigma.to(LOW) * model.SCALE if before else sigma * model.SCALE  # culprit: replayed-timesteps
        return model(timestep).float()


BUGS = (
    Bug("departures", "micdoh/XLRON#58", ("accumulated-drift", "absorption"), "aten.sub.Tensor", lambda: simulated(HALF), lambda: simulated(WIDE)),
    Bug("recording-times", "birdnet-team/BirdNET-Analyzer#900", ("overflow", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: selections(HALF), lambda: selections(WIDE)),
    Bug("replayed-timesteps", "Tencent-Hunyuan/UniRL#438", ("amplified-rounding", "integer-rounding"), "aten.mul.Tensor",
        lambda: replayed(True), lambda: replayed(False)),
)  # fmt: skip
