"""Particles in a periodic box, moved by learned forces: pairs, a repulsive core, small steps of time, and the energy that they have at the end."""

from __future__ import annotations

import math

import torch
from torch import nn

STEPS = 1
CLOUDS, BODIES, TURNS, WIDTH, CENTRES, FREQUENCIES = 4, 24, 8, 48, 24, 8
BOX, REACH, STEP, REST = 64.0, 4.0, 0.02, 740.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def between(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """From each particle to each other one, the shorter way around the box."""
    ways = places.unsqueeze(-2) - places.unsqueeze(-3)
    return ways - BOX * torch.round(ways / BOX)


def basis(length: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Bumps at some distances."""
    centres = torch.linspace(0, REACH, CENTRES)
    apart = length.unsqueeze(-1) - centres
    return torch.exp(-20 * apart.square())


def core(length: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The twelfth power that keeps particles from each other, cut at a large push."""
    power = (2.2 / length) ** 12
    return power / (1 + power / 50)


def moved(places: torch.Tensor, speeds: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A step of time later."""
    return places + STEP * speeds


def clock(start: torch.Tensor, turn: int, low: torch.dtype) -> torch.Tensor:
    """Waves of the time, which a driving field follows."""
    time = start.float() + turn * STEP
    angles = time.unsqueeze(-1) * 2.0 ** torch.arange(FREQUENCIES).float()
    return torch.cat([angles.sin(), angles.cos()], -1)


def energy(own: torch.Tensor, speeds: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of all particles, above their energy at rest."""
    moving = 0.5 * speeds.square().sum(-1)
    each = own + moving - REST
    return each.sum(-1)


def near(length: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """One nearby, and nothing beyond reach."""
    inside = (length / REACH).clamp(max=1)
    return 0.5 * (1 + torch.cos(math.pi * inside))


class Bodies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.push = nn.Sequential(nn.Linear(CENTRES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
        self.field = nn.Sequential(nn.Linear(2 * FREQUENCIES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 3))
        self.own = nn.Sequential(nn.Linear(CENTRES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def pairs(self, places: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Directions, lengths, and the bumps of the lengths."""
        with torch.autocast(places.device.type, enabled=False):
            ways = between(places, low)
            length = torch.sqrt(ways.square().sum(-1) + torch.eye(BODIES) * REACH**2)
            return ways / length.unsqueeze(-1), length, basis(length, low)

    def force(self, places: torch.Tensor, waves: torch.Tensor, low: torch.dtype) -> torch.Tensor:
        direction, length, bumps = self.pairs(places, low)
        push, field = self.push(bumps.to(self.push[0].weight.dtype)).squeeze(-1), self.field(waves.to(self.push[0].weight.dtype))
        with torch.autocast(places.device.type, enabled=False):
            size = (push.float() + core(length, low)) * near(length, low)
            return (size.unsqueeze(-1) * direction).sum(-2) + field.float().unsqueeze(-2)

    def forward(self, places: torch.Tensor, speeds: torch.Tensor, start: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.push[0].weight)
        begin, places, speeds = places.float(), places.float(), speeds.float()
        for turn in range(TURNS):
            force = self.force(places, clock(start, turn, low), low)
            with torch.autocast(places.device.type, enabled=False):
                speeds = speeds + STEP * force
                places = moved(places, speeds, low)
        _, length, bumps = self.pairs(places, low)
        own = self.own(bumps.to(self.own[0].weight.dtype)).squeeze(-1)
        with torch.autocast(places.device.type, enabled=False):
            total = energy(REST + (own.float() * near(length, low)).sum(-1), speeds, low)
            return {"way": places - begin, "speeds": speeds, "energy": total}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Bodies()


def batch() -> dict[str, torch.Tensor]:
    """Particles about the middle of the box; the clock runs since a day of 0 to 60 seconds ago."""
    generator = torch.Generator().manual_seed(3)
    grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(3), torch.arange(2), indexing="ij"), -1).reshape(-1, 3)
    return {
        "places": 40 + 1.5 * grid.float().unsqueeze(0) + 0.2 * torch.randn(CLOUDS, BODIES, 3, generator=generator),
        "speeds": 0.6 * torch.randn(CLOUDS, BODIES, 3, generator=generator),
        "start": 10 + 50 * torch.rand(CLOUDS, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["way"].square().mean() + 0.1 * output["speeds"].square().mean() + 1e-4 * output["energy"].square().mean()


optimizer = None
