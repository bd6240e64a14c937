"""Small nets whose backward pass needs room in one place, or seems to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bugs.bug import normal
from room import sixteen
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Middle = Callable[[torch.Tensor], torch.Tensor]
STEEP = 2.0**10


class Steep(torch.autograd.Function):
    """The identity, with a slope of `STEEP`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * STEEP


class WideInside(torch.autograd.Function):
    """The identity, whose gradient grows in float32 and shrinks again before float16 has it back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return (gradient.float() * 2.0**40 / 2.0**40).to(gradient.dtype)


class Tower(nn.Module):
    """Two linear layers and something between them."""

    def __init__(self, middle: Middle = functional.gelu, into: int = 8, out: int = 4) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(into, 16), nn.Linear(16, out)
        self.middle = middle
        self.x, self.y = normal(32, into, seed=1), normal(32, out, seed=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))

    def loss(self, part: slice = slice(None)) -> torch.Tensor:
        with sixteen():
            return functional.mse_loss(self(self.x[part]).float(), self.y[part])


def large_between(x: torch.Tensor) -> torch.Tensor:
    """Activations of some 2^13, of slope one, which shrink again."""
    return functional.gelu((x + 2.0**13) - 2.0**13)


def recomputed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(large_between, x, use_reentrant=False)


def recomputed_by_reentry(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(large_between, x, use_reentrant=True)


def steep_in_float32(x: torch.Tensor) -> torch.Tensor:
    """A slope of 2^40 and one of 2^-40, between which gradients are float32."""
    with torch.autocast("cpu", enabled=False):
        return ((x.float() * 2.0**-40) * 2.0**40).to(x.dtype)


def branching(x: torch.Tensor) -> torch.Tensor:
    """Sixty-four gradients that are added up in float16."""
    return torch.stack([x.clone() for _ in range(64)]).sum(0)


def put_together(x: torch.Tensor) -> torch.Tensor:
    """The columns, written into a fresh tensor in two goes."""
    made = torch.zeros_like(x)
    made[:, ::2] = x[:, ::2]
    made[:, 1::2] = 2 * x[:, 1::2]
    return made
