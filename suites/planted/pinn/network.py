"""A physics-informed network written with torch.func: a wave that drifts, its derivatives by jvp under vmap, causal weights over time."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, jvp, vmap

STEPS = 1
SPEED, HEIGHT, POINTS, SLICES, WIDTH = 30.0, 20.0, 256, 16, 32


def embed(coords: torch.Tensor) -> torch.Tensor:
    """Periodic features of x and t. coords: [2]."""
    x, t = coords[..., 0], coords[..., 1]
    k = torch.arange(1, 5, device=coords.device, dtype=coords.dtype)
    phase = 2 * math.pi * k * x.unsqueeze(-1)
    return torch.cat([phase.sin(), phase.cos(), t.unsqueeze(-1)], -1)


def drifting(coords: torch.Tensor) -> torch.Tensor:
    """The known part of the solution: a wave that drifts at the speed of the flow."""
    return HEIGHT * torch.sin(2 * math.pi * (coords[..., 0] - SPEED * coords[..., 1]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(9, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, coords: torch.Tensor) -> torch.Tensor:
        return self.hidden(embed(coords)).squeeze(-1)


def derivatives(net: Net, coords: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the network gives at each point, and its slopes along x and t."""
    params = dict(net.named_parameters())

    def at(point: torch.Tensor) -> torch.Tensor:
        return functional_call(net, params, (point,)).float()

    along_x, along_t = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    value, u_x = vmap(lambda point: jvp(at, (point,), (along_x,)))(coords)
    _, u_t = vmap(lambda point: jvp(at, (point,), (along_t,)))(coords)
    return value, u_x, u_t


def residual(coords: torch.Tensor, u_x: torch.Tensor, u_t: torch.Tensor) -> torch.Tensor:
    """u_t + c u_x of the network and the wave. Those of the wave cancel each other."""
    slope = 2 * math.pi * HEIGHT * torch.cos(2 * math.pi * (coords[..., 0] - SPEED * coords[..., 1]))
    all_x, all_t = u_x + slope, u_t - SPEED * slope
    return all_t + SPEED * all_x


def by_time(squares: torch.Tensor) -> torch.Tensor:
    """The mean of each slice of time."""
    return squares.view(SLICES, -1).mean(-1)


def causal_weights(losses: torch.Tensor, rate: float = 3e-5) -> torch.Tensor:
    """A slice counts once those before it are small."""
    before = torch.zeros_like(losses)
    before[1:] = losses.detach().cumsum(0)[:-1]
    return torch.exp(-rate * before)


def energy(values: torch.Tensor) -> torch.Tensor:
    """The variance of the solution over each slice."""
    values = values.view(SLICES, -1)
    return (values - values.mean(-1, keepdim=True)).square().mean(-1)


class Trainer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, coords: torch.Tensor) -> dict[str, torch.Tensor]:
        value, u_x, u_t = derivatives(self.net, coords)
        with torch.autocast("cpu", enabled=False):
            rest = residual(coords, u_x, u_t)
            losses = by_time(rest.square())
            weights = causal_weights(losses)
            solution = 200.0 + value + drifting(coords)
            held = (energy(solution) / HEIGHT**2 - 0.5).square().mean()
        return {"loss": (weights * losses).mean() + held, "weights": weights, "solution": solution, "energy": energy(solution)}


PRECISIONS = ("bf16-mixed", "16-mixed")  # coordinates are inputs, which a conversion of everything would round


def make() -> nn.Module:
    torch.manual_seed(0)
    return Trainer()


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    t = (torch.arange(SLICES).repeat_interleave(POINTS // SLICES) + torch.rand(POINTS, generator=generator)) / SLICES
    return torch.stack([torch.rand(POINTS, generator=generator), t], -1)


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
