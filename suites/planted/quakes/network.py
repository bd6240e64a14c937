"""Forecasts earthquakes: a neural point process. A transformer scales how many shocks each shock has, the rest is seismologists' own formulas."""

import math

import torch
import torch.nn.functional as F
from torch import nn

REGIONS, EVENTS, SIZE, HEADS = 3, 40, 32, 4
DAY, LEAST, POWER, DELAY, AREA = 86400, 4.5, 1.1, 0.05, 90_000.0
STEPS = 1


def half(x):
    """The format of the network's own products."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def lags(times, low):
    """Days from each shock to each later one. times: Unix time in whole seconds, [R, N]."""
    return (times[:, :, None] - times[:, None, :]).clamp_min(0).float() / DAY


def children(magnitudes, low):
    """How many shocks a shock has, ten times as many for each magnitude. Returns [R, N]."""
    return 1e-3 * 10 ** (magnitudes - LEAST)


def fading(lag, low):
    """How the rate of aftershocks falls with the days, after Omori."""
    return (lag + DELAY) ** -POWER


def faded(lag, low):
    """The part of a shock's aftershocks that comes between its lag to one event and to the next. lag: [R, N, N]."""
    powers = DELAY ** (POWER - 1) * (lag + DELAY) ** (1 - POWER)
    return powers[:, :-1] - powers[:, 1:]


def squared_distances(places, low):
    """Square kilometres between epicentres. places: kilometres in the map's own grid, [R, N, 2]."""
    apart = places[:, :, None, :] - places[:, None, :, :]
    return apart.square().sum(-1)


def nearness(squares, low, width=8.0):
    """The density of an aftershock's place, a square kilometre."""
    return (1 + squares / width**2) ** -1.5 / (2 * math.pi * width**2)


def rates(background, triggered, low):
    """The logarithm of the shocks a day on a square kilometre that are expected where and when each one was. background: shocks a day in all."""
    return (background / AREA + triggered).log()


def b_values(magnitudes, low):
    """The slope of the number of shocks over their magnitude, by Aki's formula."""
    return math.log10(math.e) / (magnitudes - LEAST).mean(1)


def chances(expected, low):
    """The chance of a shock at all where so many are expected."""
    return -torch.expm1(-expected)


def numbers(times, low):
    """The number of each shock within its year: the catalogue goes on from where the last year's training stopped."""
    return torch.arange(times.shape[1]) + 700


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.second(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.number = nn.Linear(4, SIZE), nn.Embedding(1024, SIZE)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(2)), nn.Linear(SIZE, 2)

    def forward(self, times, magnitudes, places):
        low = half(self.head.weight)
        with torch.autocast("cpu", enabled=False):
            lag = lags(times, low)
            since = torch.diagonal(lag, -1, 1, 2)
            before = F.pad(since, (1, 0)).float()
            b = b_values(magnitudes, low).float()
            facts = torch.stack([magnitudes - LEAST, (before + 0.01).log(), places[..., 0] / 1000, b[:, None].expand_as(magnitudes)], -1)
        x = self.embed(facts) + self.number(numbers(times, low).long())
        for layer in self.layers:
            x = layer(x)
        scale, background = F.softplus(self.head(x).float()).unbind(-1)
        with torch.autocast("cpu", enabled=False):
            parents = children(magnitudes, low).float() * scale
            kernel = fading(lag, low).float() * nearness(squared_distances(places, low).float(), low)
            earlier = torch.ones(EVENTS, EVENTS).tril(-1)
            log_rate = rates(0.002 * background, (earlier * kernel * parents[:, None, :]).sum(-1), low).float()
            expected = (faded(lag, low).float() * parents[:, None, :] * earlier[:-1] * 10).sum(-1) + 0.002 * background[:, 1:] * since.float()
            chance = chances(1e-3 * expected, low).float()  # one in a thousand does damage
        return {"log_rate": log_rate, "expected": expected, "chance": chance, "b": b, "loss": expected.sum(1).mean() - log_rate.mean()}


PRECISIONS = ("bf16-mixed", "16-mixed")  # places are inputs


def make():
    torch.manual_seed(0)
    return Forecaster()


def batch():
    generator = torch.Generator().manual_seed(17)
    times = 1_720_000_000 + (40_000 * torch.rand(REGIONS, EVENTS, generator=generator).log().neg()).long().cumsum(1)
    magnitudes = LEAST + 0.45 * torch.rand(REGIONS, EVENTS, generator=generator).log().neg()
    magnitudes[:, 3] = torch.tensor([9.41, 9.47, 9.36])  # the shock that the others follow
    places = torch.tensor([3950.0, 480.0]) + 6 * torch.randn(REGIONS, EVENTS, 2, generator=generator)
    places[:, 0] += 260
    return {"times": times, "magnitudes": magnitudes, "places": places}


def loss(output):
    return output["loss"]


optimizer = None
