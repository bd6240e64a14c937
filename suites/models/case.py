"""What every model of this suite comes as: the arguments of check_precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """A usual rate: under true bfloat16 it would lose updates, and precheck says so."""
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclasses.dataclass
class Case:
    """A model with inputs and a loss, seeded, and free of side effects on torch's random state."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw


def built(seed: int, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """`make()` under that seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def draws(seed: int) -> torch.Generator:
    """For a case's inputs."""
    return torch.Generator().manual_seed(10_000 + seed)


def tokens(seed: int, *shape: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, shape, generator=draws(seed))
