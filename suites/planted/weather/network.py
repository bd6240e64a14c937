"""A model of the weather on a globe: harmonics of the sphere are filtered, and what changes in six hours is added."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # heights of pressure levels and hours since 1900 are inputs
STEPS = 1
NORTH, EAST, DEGREES, CHANNELS, WIDTH, STATIONS = 20, 40, 16, 5, 24, 10


def low_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.get_default_dtype()


def latitudes() -> torch.Tensor:
    """Of the rows, in radians."""
    return math.pi * ((torch.arange(NORTH).float() + 0.5) / NORTH - 0.5)


def legendre(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The normalised functions of each order and degree at each row, by their recurrence: (order, degree, row)."""
    none = torch.zeros_like(x)
    side = torch.sqrt(1 - x * x)
    first, orders = torch.full_like(x, 0.5**0.5), []
    for order in range(DEGREES):
        if order:
            first = math.sqrt((2 * order + 1) / (2 * order)) * side * first
        before, now, column = none, first, [none] * order + [first]
        for degree in range(order + 1, DEGREES):
            a = math.sqrt((4 * degree**2 - 1) / (degree**2 - order**2))
            b = math.sqrt(((degree - 1) ** 2 - order**2) / (4 * (degree - 1) ** 2 - 1))
            before, now = now, a * (x * now - b * before)
            column.append(now)
        orders.append(torch.stack(column))
    return torch.stack(orders).float()


def hour_angle(hours: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of the sun, for hours since 1900."""
    return (torch.remainder(hours, 24) * (2 * math.pi / 24)).float()


def standardised(fields: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return ((fields - mean) / spread).float()


def nearness(north: torch.Tensor, east: torch.Tensor, stations: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much of each place a station sees: the closer on the globe, the more."""

    def points(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([a.cos() * b.cos(), a.cos() * b.sin(), a.sin()], -1)

    grid, here = points(north, east), points(stations[:, 0], stations[:, 1])
    angle = 2 * torch.asin(((here.unsqueeze(1) - grid).norm(dim=-1) / 2).clamp(max=1))
    weight = 1 / (angle + 0.01)
    return (weight / weight.sum(-1, keepdim=True)).float()


def shares(spread: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What an error of each field counts: less where fields vary more."""
    return (1 / spread.square()).float()


def change(after: torch.Tensor, before: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """By how much each field changes."""
    return (after - before).float()


class Filter(nn.Module):
    """Turns fields into harmonics, weighs each degree, and turns them back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, DEGREES) * 0.2)
        self.mix, self.out, self.norm = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, table: torch.Tensor, waves: torch.Tensor, area: torch.Tensor) -> torch.Tensor:
        low = low_dtype()
        with torch.autocast(x.device.type, enabled=False):
            rows = torch.einsum("nec,tem->tncm", self.norm(x.float()), waves) / EAST
            found = torch.einsum("tncm,mdn,n->tcmd", rows, table, area)
            kept = found * self.weight.float().unsqueeze(1)
            back = torch.einsum("tcmd,mdn,tem->nec", kept, table, waves)
        return x + self.out(functional.gelu(self.mix(back.to(low))))


class Weather(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS + 3, WIDTH), nn.Linear(WIDTH, CHANNELS)
        self.filters = nn.ModuleList(Filter() for _ in range(2))

    def forward(
        self, fields: torch.Tensor, later: torch.Tensor, hours: torch.Tensor, stations: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype()
        with torch.autocast(fields.device.type, enabled=False):
            north, east = latitudes().unsqueeze(1).expand(NORTH, EAST), (2 * math.pi * torch.arange(EAST).float() / EAST).expand(NORTH, EAST)
            sun = hour_angle(hours, low) + east
            table = legendre(latitudes().sin(), low)
            area = latitudes().cos() * (math.pi / NORTH)
            turns = east[0].unsqueeze(-1) * torch.arange(DEGREES)
            waves = torch.stack([turns.cos(), turns.sin()])
            x = standardised(fields, mean, spread, low)
            x = torch.cat([x, sun.cos().unsqueeze(-1), sun.sin().unsqueeze(-1), north.sin().unsqueeze(-1)], -1)
            sees = nearness(north.flatten(), east.flatten(), stations, low)
            wanted = change(later, fields, low)
        x = self.first(x)
        for each in self.filters:
            x = each(x, table, waves, area)
        moved = self.last(x)
        with torch.autocast(fields.device.type, enabled=False):
            off, share = 0.02 * spread * moved.float() - wanted, 2500 * shares(spread, low)
            seen = sees @ off.flatten(0, 1)
            loss = ((off.square() * share).mean((1, 2)) * area).sum() / area.sum() + (seen.square() * share).mean()
            forecast = fields + 0.02 * spread * moved.float()
        return {"loss": loss, "forecast": forecast, "seen": seen}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Weather()


def batch() -> dict[str, torch.Tensor]:
    """Temperature, height of a level, moisture and two winds; they change little in six hours. Stations lie beside places of the grid."""
    generator = torch.Generator().manual_seed(1)
    mean, spread = torch.tensor([278.0, 54100.0, 0.006, 2.0, 0.1]), torch.tensor([21.0, 330.0, 0.004, 8.0, 6.0])
    smooth = functional.interpolate(torch.randn(1, CHANNELS, 5, 10, generator=generator), size=(NORTH, EAST), mode="bilinear")[0].permute(1, 2, 0)
    moved = functional.interpolate(torch.randn(1, CHANNELS, 5, 10, generator=generator), size=(NORTH, EAST), mode="bilinear")[0].permute(1, 2, 0)
    rows, columns = torch.randint(4, 16, (STATIONS,), generator=generator), torch.randint(0, EAST, (STATIONS,), generator=generator)
    near = torch.stack([math.pi * ((rows + 0.5) / NORTH - 0.5), 2 * math.pi * columns / EAST], -1)
    return {
        "fields": mean + spread * smooth,
        "later": mean + spread * (smooth + 0.02 * moved),
        "hours": torch.tensor(1104570.0),
        "stations": near + 0.004 * torch.randn(STATIONS, 2, generator=generator),
        "mean": mean,
        "spread": spread,
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
