"""A few rounds of training as manuals have it, and small networks to train; what they are trained for stands in other files."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn

LOW, HALF = torch.bfloat16, torch.float16


def perceptron(*sizes: int, act: Callable[[], nn.Module] = nn.SiLU) -> nn.Sequential:
    """Linear layers with an activation between them, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), act()]
        return nn.Sequential(*layers[:-1])


def rounds(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    dtype: torch.dtype = LOW,
    steps: int = 4,
    clip: float = 0.0,
) -> torch.Tensor:
    """The losses of a training under autocast, under a GradScaler if it is float16's."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype is HALF)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            value = loss()
        scaler.scale(value).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.detach().float())
    return torch.stack(losses)
