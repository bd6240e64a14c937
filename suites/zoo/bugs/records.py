"""Weights, streams, records, tails and forces: draws by an inverse, layers that are run back, products of chances, fourth powers, tapers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def cut_normal(chances: torch.Tensor, spread: float, least: float, most: float) -> torch.Tensor:
    """Normal numbers between two bounds, out of even ones between nought and one, by the inverse of the cumulative chance."""
    low, high = ((1 + math.erf(bound / spread / math.sqrt(2))) / 2 for bound in (least, most))
    even = 2 * (low + (high - low) * chances) - 1  # culprit: weights-between-bounds
    return (torch.erfinv(even) * spread * math.sqrt(2)).clamp(least, most)  # culprit: weights-between-bounds


def initial(dtype: torch.dtype) -> torch.Tensor:
    """What a fresh layer in bfloat16 makes of unit vectors, whose weights have a spread of 0.02 between bounds of two: some are two. Off by 850 %."""
    layer = nn.Linear(64, 48, bias=False, dtype=LOW)
    with torch.no_grad():
        layer.weight.copy_(cut_normal(uniform(48, 64).to(dtype), 0.02, -2.0, 2.0))
        return layer(normal(24, 64, seed=1).to(LOW)).float()


class Coupling(nn.Module):
    """A pair of layers, each of which adds what it makes of one half of a stream to the other half."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.shift = nn.Parameter(6 * normal(2, width, seed=100 + seed), requires_grad=False)
        with torch.no_grad():
            for place, layer in enumerate((self.first, self.second)):
                layer.weight.copy_(0.15 * normal(width, width, seed=2 * seed + place) / width**0.5)
                layer.bias.zero_()

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x)) + self.shift[0]

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(x)) + self.shift[1]


class RunBack(torch.autograd.Function):
    """Couplings of which nothing is kept but the end of the stream: on the way back each is undone, and run once more for its gradients."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, y: torch.Tensor, couplings: list[Coupling], *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for each in couplings:
            x = x + each.one(y)
            y = y + each.other(x)
        context.couplings, context.cast = couplings, torch.is_autocast_enabled("cpu")
        context.save_for_backward(x, y)
        return x, y

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y = context.saved_tensors
        to_x, to_y = gradients
        found: list[torch.Tensor] = []
        for each in reversed(context.couplings):
            with torch.enable_grad(), torch.autocast("cpu", LOW, enabled=context.cast):
                here = x.detach().requires_grad_()
                made = each.other(here)
            moved, *weights = torch.autograd.grad(made, (here, *each.second.parameters()), to_y)
            to_x, found = to_x + moved, [*weights, *found]
            with torch.no_grad():
                y = y - made  # culprit: layers-run-back
            with torch.enable_grad(), torch.autocast("cpu", LOW, enabled=context.cast):
                here = y.detach().requires_grad_()
                made = each.one(here)
            moved, *weights = torch.autograd.grad(made, (here, *each.first.parameters()), to_x)
            to_y, found = to_y + moved, [*weights, *found]
            with torch.no_grad():
                x = x - made  # culprit: layers-run-back
        return to_x, to_y, None, *found


class Reversible(nn.Module):
    """Ten couplings between two halves of a stream, which is kept in a format; its layers are bfloat16 in either case, by autocast or by a cast."""

    def __init__(self, width: int, stream: torch.dtype) -> None:
        super().__init__()
        self.couplings, self.stream = nn.ModuleList(Coupling(width, seed) for seed in range(10)), stream

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half, rest = x.to(self.stream).chunk(2, -1)
        out = RunBack.apply(half, rest, list(self.couplings), *(each for each in self.parameters() if each.requires_grad))
        return torch.cat(out, -1).float()


def trained_back(stream: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Gradients of the first coupling, whose inputs are small beside the end of the stream. Off by 41 %."""
    model = Reversible(12, stream)
    model = model.to(LOW) if stream == LOW else model
    x = normal(32, 24, seed=500) / 4
    with torch.autocast("cpu", LOW, enabled=stream != LOW):
        out = model(x)
    (out * normal(32, 24, seed=501)).sum().backward()
    layers = itertools.islice(model.couplings.parameters(), 5)
    return tuple(each.grad.float() for each in layers if each.grad is not None)


class HiddenMarkov:
    """Which of several states a machine is in, step by step, by what is measured of it."""

    def __init__(self, moves: torch.Tensor, means: torch.Tensor, scaled: bool) -> None:
        self.moves, self.means, self.scaled = moves, means, scaled

    def states(self, seen: torch.Tensor) -> torch.Tensor:
        """The state that is likeliest at each step, given all until then."""
        chance, found = torch.full((len(self.means),), 1 / len(self.means)), []
        for each in seen:
            density = torch.exp(-(each - self.means).square().sum(-1) / 2) / (2 * math.pi) ** (seen.shape[1] / 2)
            chance = (chance @ self.moves) * density  # culprit: states-of-a-long-record
            if self.scaled:
                chance = chance / chance.sum()
            found.append(chance.argmax())
        return torch.stack(found).float()


def monitored(scaled: bool) -> torch.Tensor:
    """States of a machine over 120 steps by four sensors; after a score of steps all chances are nought, and the first state wins. Off by 100 %."""
    moves, means = 0.85 * torch.eye(4) + 0.05, 1.5 * normal(4, 4)
    path = (4 * uniform(15, seed=1)).long().repeat_interleave(8)
    return HiddenMarkov(moves, means, scaled).states(means[path] + normal(120, 4, seed=2))


def kurtosis(data: torch.Tensor, scaled: bool) -> torch.Tensor:
    """How heavy the tails of columns are: the fourth moment by the square of the second one, less three."""
    away = data - data.mean(0)
    if scaled:
        away = away.float()
        away = away / away.abs().amax(0)
    second, fourth = away.square().mean(0), away.square().square().mean(0)  # culprit: tails-of-small-returns
    return (fourth / second.square() - 3).float()  # culprit: tails-of-small-returns


def returns(scaled: bool) -> torch.Tensor:
    """Tails of six columns of returns by the minute in half, whose fourth powers are below 6e-8: nought by nought, or infinity."""
    spread = torch.tensor([2e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3])
    return kurtosis((spread * normal(400, 6) * (0.5 + uniform(400, 1, seed=1))).to(HALF), scaled)


class Dispersion(nn.Module):
    """Energies and forces between layers of atoms, which a taper takes away where they are too near each other."""

    def __init__(self, steep: float, bounded: bool) -> None:
        super().__init__()
        self.steep, self.bounded = steep, bounded

    def forward(self, distance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        reduced = distance / 3.4
        pull, slope = distance**-6, -6 * distance**-7
        if self.bounded:
            taper = torch.sigmoid(self.steep * (reduced - 1))
            return -pull * taper, -slope * taper - pull * taper * (1 - taper) * self.steep / 3.4
        power = torch.exp(-self.steep * (reduced - 1))  # culprit: taper-of-a-force
        taper = 1 / (1 + power)
        return -pull * taper, -slope * taper - pull * taper * taper * power * self.steep / 3.4  # culprit: taper-of-a-force


def pulled(bounded: bool) -> tuple[torch.Tensor, ...]:
    """Energies and forces of fifty pairs, some nearer than three quarters of the usual: with a steep taper, no force there is a number."""
    return tuple(each * 3.4**6 for each in Dispersion(400.0, bounded)(torch.linspace(2.2, 8, 50)))


BUGS = (
    Bug("weights-between-bounds", "pytorch/torchtitan#2269", ("cancellation", "overflow", "amplified-rounding", "nan"), "aten.sub.Tensor",
        lambda: initial(LOW), lambda: initial(WIDE)),
    Bug("layers-run-back", "RobinBruegger/RevTorch#15", ("cancellation", "accumulated-drift", "amplified-rounding", "absorption"),
        "aten.sub.Tensor", lambda: trained_back(LOW), lambda: trained_back(WIDE), phase="backward"),
    Bug("states-of-a-long-record", "mlpack/mlpack#160", ("underflow",), "aten.mul.Tensor", lambda: monitored(False), lambda: monitored(True),
        precision="32-true"),
    Bug("tails-of-small-returns", "NVIDIA/cudf#24165", ("underflow", "nan"), "aten.pow.Tensor_Scalar", lambda: returns(False),
        lambda: returns(True)),
    Bug("taper-of-a-force", "brucefan1983/GPUMD#904", ("overflow", "nan"), "aten.exp.default", lambda: pulled(False), lambda: pulled(True),
        module="Dispersion", precision="32-true"),
)  # fmt: skip
