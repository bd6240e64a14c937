"""Forecasts the power of solar plants: a recurrent network over quarter hours, with the calendar, meters, and the curve of a cell's diode."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PLANTS, QUARTERS, DIM = 6, 192, 32
START = 2_459_000
THERMAL, LEAK = 1.9, 2e-9
STEPS = 1


def days(julian, minutes):
    """Days and their fraction since START. julian: whole days, [B, T]; minutes: of the day, whole numbers."""
    return (julian - START).float() + minutes.float() / 1440


def hour(minutes):
    """The hour of the day. minutes: since the log began at midnight, whole numbers."""
    return torch.div(minutes, 60, rounding_mode="floor") % 24


def gained(counter, watts):
    """What a meter has counted since it was read. counter: kilowatt hours; watts: of each quarter hour, [QUARTERS, B]."""
    total = counter
    for each in watts:
        total = total + each / 4000
    return total - counter


def used(counter):
    """Kilowatt hours between the readings of a meter. counter: whole watt hours, [B, N]."""
    return (counter[:, 1:] - counter[:, :-1]).float() / 1000


def together(pressure, power):
    """The covariance of pressure and power. pressure: hectopascals; power: kilowatts, [B, T]."""
    pressure, power = pressure.float(), power.float()
    return ((pressure - pressure.mean(-1, keepdim=True)) * (power - power.mean(-1, keepdim=True))).mean(-1)


def current(light, volts):
    """What a module delivers, by its diode. light: amperes; volts: of the whole module."""
    return light.float() - LEAK * torch.expm1(volts.float() / THERMAL)


def offsets(north, east):
    """Kilometres from the first plant to each. Both: whole metres of the grid, [PLANTS]."""
    return torch.stack([north - north[0], east - east[0]], -1).float() / 1000


def usual(load):
    """The mean load so far, at each quarter hour. load: [QUARTERS, B]"""
    total, means = torch.zeros_like(load[0]), []
    for number, each in enumerate(load, 1):
        total = total + each
        means.append(total / number)
    return torch.stack(means)


def change(power):
    """The logarithm of how much power changes from one quarter hour to the next. power: [B, T]"""
    power = power.float()
    return torch.log1p((power[:, 1:] - power[:, :-1]) / power[:, :-1])


class Solar(nn.Module):
    def __init__(self):
        super().__init__()
        self.clock, self.past = nn.Embedding(24, 8), nn.GRU(15, DIM, batch_first=True)
        self.mix, self.ahead = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, julian, minutes, counter, watts, pascals, volts, north, east):
        kind = self.ahead.weight.dtype
        with torch.autocast("cpu", enabled=False):
            season = 2 * math.pi * days(julian, minutes % 1440) / 365.25
            power = watts.float() / 1000
            meter, usually = gained(counter[:, -1].float() / 1000, watts.float().T), usual(power.T).T
            cell = current(power.mean(-1, keepdim=True) / 10, volts.float() / 100)
            linked, moved = together(pascals.float() / 100, power), change(power)
            away = offsets(north, east)
            told = torch.stack([season.cos(), season.sin(), power / 6, usually / 6, F.pad(moved, (1, 0))], -1)
            fixed = torch.cat([away.float() / 10, linked[:, None] / 10], -1)[:, None].expand(-1, QUARTERS, -1)
        told = torch.cat([told[..., :4], fixed], -1).to(kind)
        x, _ = self.past(torch.cat([told, self.clock(hour(minutes))], -1))
        ahead = self.ahead(F.gelu(self.mix(x))).squeeze(-1).float()
        with torch.autocast("cpu", enabled=False):
            wrong = (ahead[:, :-1] - moved).square().mean(-1)
            spent = used(counter)
        return {"wrong": wrong, "meter": meter, "cell": cell, "spent": spent, "season": season, "moved": moved, "away": away, "usually": usually}


def make():
    torch.manual_seed(0)
    return Solar()


def batch():
    generator = torch.Generator().manual_seed(242)

    def whole(least, most, *size):
        return torch.randint(least, most, size, generator=generator)

    minutes = 15 * torch.arange(QUARTERS) + 1440 * whole(2, 9, PLANTS, 1)
    return {
        "julian": START + whole(150, 420, PLANTS, 1) + minutes // 1440,
        "minutes": minutes,
        "counter": 400_000 + whole(2_000, 9_000, PLANTS, 12).cumsum(-1),
        "watts": 4000 + whole(-60, 62, PLANTS, QUARTERS).cumsum(-1),
        "pascals": 101_000 + whole(-40, 44, PLANTS, QUARTERS).cumsum(-1),
        "volts": whole(3200, 3900, PLANTS, 8),
        "north": 5_572_000 + whole(0, 18_000, PLANTS),
        "east": 688_000 + whole(0, 18_000, PLANTS),
    }


def loss(output):
    told = output["meter"].mean() / 100 + output["cell"].mean() + output["spent"].mean() / 10 + output["usually"].mean() / 10
    return output["wrong"].mean() + 0.1 * told + output["moved"].square().mean() + 1e-2 * output["away"].square().mean().sqrt()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
