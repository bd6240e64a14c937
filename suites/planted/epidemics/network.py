"""An epidemic in regions: a GRU reads reports and gives each day's rate of contagion, compartments are stepped, and reports are negative binomial."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REGIONS, DAYS, SIZE, SUBSTEPS = 8, 70, 24, 4
STEPS = 1


class Reports:
    """What the authorities published, as whole numbers. `dtype` is that in which the network computes."""

    def __init__(self, total: Tensor, people: Tensor, day: Tensor, dtype: torch.dtype) -> None:
        self.total, self.people, self.day, self.dtype = total, people, day, dtype

    @property
    def daily(self) -> Tensor:
        """New cases of each day."""
        return (self.total[:, 1:] - self.total[:, :-1]).float()

    def season(self) -> Tensor:
        """Sine and cosine of the time of year. Days count since 1970."""
        angle = 2 * math.pi * self.day.float() / 365.2425
        return torch.stack([angle.sin(), angle.cos()], -1)

    def growth(self) -> Tensor:
        """The logarithm of a week's growth of all cases so far."""
        logs = self.total.float().log()
        return logs[:, 7:] - logs[:, :-7]

    def incidence(self) -> Tensor:
        """Cases in 100 000 people."""
        return self.daily * (100_000 / self.people.float())[:, None]


class Compartments(nn.Module):
    """Susceptible, exposed, infectious and recovered people."""

    def __init__(self) -> None:
        super().__init__()
        self.incubation, self.recovery = 1 / 5.2, 1 / 7.0

    def start(self, reports: Reports) -> tuple[Tensor, Tensor, Tensor]:
        people = reports.people.float()
        exposed, infectious = 3 * reports.daily[:, 0], 5 * reports.daily[:, 0]
        return people - exposed - infectious - 4 * reports.total[:, 0], exposed, infectious

    def infected(self, susceptible: Tensor, infectious: Tensor, people: Tensor, rate: Tensor) -> Tensor:
        """How many are infected in a piece of a day."""
        pressure = rate * (infectious / people) / SUBSTEPS
        return susceptible * self.chance(pressure)

    def chance(self, pressure: Tensor) -> Tensor:
        """Of being infected, at that pressure."""
        return -torch.expm1(-pressure)

    def forward(self, reports: Reports, rates: Tensor) -> Tensor:
        """New infectious people of each day."""
        people, (susceptible, exposed, infectious) = reports.people.float(), self.start(reports)
        days = []
        for day in range(rates.shape[1]):
            new = torch.zeros_like(exposed)
            for _ in range(SUBSTEPS):
                infected = self.infected(susceptible, infectious, people, rates[:, day])
                ill, well = exposed * self.incubation / SUBSTEPS, infectious * self.recovery / SUBSTEPS
                susceptible, exposed, infectious = susceptible - infected, exposed + infected - ill, infectious + ill - well
                new = new + ill
            days.append(new)
        return torch.stack(days, 1)


def surprise(counts: Tensor, mean: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """The negative logarithm of the negative binomial probability."""
    ways = torch.lgamma(counts + spread) - torch.lgamma(spread) - torch.lgamma(counts + 1)
    return -(ways + spread * (spread / (spread + mean)).log() + counts * (mean / (spread + mean)).log())


def spared(new: Tensor, people: Tensor, dtype: torch.dtype) -> Tensor:
    """The logarithm of the share of people whom a day's cases leave in peace."""
    return torch.log1p(-new / people[:, None])


class Epidemic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.rate = nn.GRU(4, SIZE, num_layers=2, batch_first=True), nn.Linear(SIZE, 2)
        self.compartments = Compartments()

    def forward(self, total: Tensor, people: Tensor, day: Tensor) -> dict[str, Tensor]:
        reports = Reports(total, people, day, self.rate(torch.ones(1, SIZE).to(self.rate.weight.dtype)).dtype)
        with torch.autocast("cpu", enabled=False):
            season, growth, incidence = reports.season(), reports.growth(), reports.incidence()
            rows = torch.cat([season[:, 7:], growth[..., None].float(), incidence[:, 6:, None].float() / 50], -1)
        hidden, _ = self.recurrent(rows.to(self.rate.weight.dtype))
        raw = self.rate(hidden).float()
        with torch.autocast("cpu", enabled=False):
            rates, spread = 0.3 * F.softplus(raw[..., 0]), 8 + F.softplus(raw[..., 1])
            new = self.compartments(reports, rates)
            lost = surprise(reports.daily[:, 6:], new.clamp_min(1) / 2, spread, reports.dtype)
            left = spared(new, people.float(), reports.dtype)
        return {"new": new / 1000, "lost": lost, "left": 1000 * left}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Epidemic()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(18)
    people = torch.randint(600_000, 9_000_000, (REGIONS,), generator=generator)
    size = people[:, None] / 4000 * (1 + 0.4 * torch.rand(REGIONS, DAYS + 1, generator=generator))
    daily = size * (0.015 * (torch.arange(DAYS + 1) - 20)).exp()
    start = people // 16
    return {
        "total": start[:, None] + daily.round().long().cumsum(1),
        "people": people,
        "day": 18_300 + torch.randint(90, (REGIONS, 1), generator=generator) + torch.arange(DAYS + 1),
    }


def loss(output: dict[str, Tensor]) -> Tensor:
    return output["lost"].mean() - output["left"].mean() / 100


optimizer = None
