"""A model of rivers, as hydrologists train them on many catchments: an LSTM over weather, snow that melts by degree-days, and a unit hydrograph."""

import math

import torch
import torch.nn.functional as F
from torch import nn

BASINS, DAYS, STATIC, DIM, ROUTED = 10, 48, 6, 32, 12
FREEZING = 273.15
STEPS = 1


def warmth(centikelvin):
    """Degrees above freezing. centikelvin: whole hundredths of a kelvin. [BASINS, DAYS]"""
    return centikelvin.float() / 100 - FREEZING


def season(day):
    """Sine and cosine of the time of year, of days since 1950."""
    turn = 2 * math.pi * day.float() / 365.25
    return torch.stack([turn.sin(), turn.cos()], -1)


def stored(rain, loss):
    """How much more water than at the start is in the ground, at the end of each day, in millimetres. Both: whole hundredths."""
    return ((rain - loss).float() / 100).cumsum(-1)


def wetter(store):
    """How the store has changed in each two days."""
    return store[:, 2:] - store[:, :-2]


def rated(stage, datum):
    """The flow at a water level, by the gauge's rating curve. Both levels are millimetres above the sea."""
    deep = (stage - datum).float() / 1000
    return 12 * deep.clamp_min(0) ** 1.7


def volume(millimetres, area):
    """Cubic metres a second, of millimetres a day on an area in square kilometres."""
    return millimetres.float() * area.float()[:, None] / 86.4


def leaving(hours):
    """The share of a store that runs off within an hour, of its mean stay in hours."""
    return -torch.expm1(-1 / hours.float())


def routed(flow, peak):
    """The flow after its way through the channels: a gamma-shaped unit hydrograph."""
    time = torch.arange(ROUTED) + 0.5
    shape = torch.softmax(1.5 * time.log() - time / peak.float()[:, None], -1)
    padded = F.pad(flow, (ROUTED - 1, 0)).unfold(-1, ROUTED, 1)
    return (padded * shape.flip(-1)[:, None]).sum(-1)


def spread(flow):
    """How much the flow of each river varies: what an efficiency is told beside."""
    flow = flow.float()
    return (flow - flow.mean(-1, keepdim=True)).square().mean(-1)


def gauged(valid):
    """On how many days each river was gauged in all."""
    return valid.sum(-1).float()


class Rivers(nn.Module):
    def __init__(self):
        super().__init__()
        self.static, self.enter = nn.Linear(STATIC, DIM), nn.Linear(7, DIM)
        self.memory, self.mix = nn.Conv1d(DIM, DIM, 5), nn.Linear(DIM, DIM)
        self.runoff = nn.Linear(DIM, 1)

    def forward(self, centikelvin, day, rain, loss, stage, datum, area, hours, valid, traits):
        kind = self.enter.weight.dtype
        with torch.autocast("cpu", enabled=False):
            warm, store, gauge = warmth(centikelvin), stored(rain, loss), rated(stage, datum)
            change = F.pad(wetter(store), (2, 0))
            quick = leaving(hours)[:, None].expand(-1, DAYS)
            told = torch.stack([warm / 10, store / 50, change / 5, gauge / 30, 100 * quick], -1)
            told = torch.cat([told, season(day)], -1)
        x = F.gelu(self.enter(told.to(kind)) + self.static(traits.to(kind) / 100)[:, None])
        x = x + F.gelu(self.memory(F.pad(x.mT, (4, 0))).mT)
        depth = F.softplus(self.runoff(F.gelu(self.mix(x))).squeeze(-1).float())
        with torch.autocast("cpu", enabled=False):
            flow = routed(volume(depth, area), 1.5 + 10 * quick[:, 0])
            size = spread(gauge + 40)
        return {"flow": flow, "gauge": gauge, "spread": size, "days": gauged(valid), "wetter": change}


def make():
    torch.manual_seed(0)
    return Rivers()


def batch():
    generator = torch.Generator().manual_seed(220)
    datum = torch.randint(200_000, 400_000, (BASINS, 1), generator=generator)
    return {
        "centikelvin": torch.randint(26_500, 28_300, (BASINS, DAYS), generator=generator),
        "day": torch.randint(18_000, 26_000, (BASINS, 1), generator=generator) + torch.arange(DAYS),
        "rain": torch.randint(200, 900, (BASINS, DAYS), generator=generator),
        "loss": torch.randint(0, 300, (BASINS, DAYS), generator=generator),
        "stage": datum + torch.randint(600, 1900, (BASINS, DAYS), generator=generator),
        "datum": datum,
        "area": torch.randint(60_000, 90_000, (BASINS,), generator=generator),
        "hours": torch.randint(150, 900, (BASINS,), generator=generator),
        "valid": (torch.rand(BASINS, 700, generator=generator) < 0.9).long(),
        "traits": torch.randint(-100, 100, (BASINS, STATIC), generator=generator),
    }


def loss(output):
    wrong = (output["flow"] / 1000 - output["gauge"] / 30).square().mean(-1)
    weight = output["days"] / output["days"].sum()
    return (weight * wrong / (output["spread"].sqrt() + 0.1)).sum() + 1e-3 * output["wetter"].square().mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
