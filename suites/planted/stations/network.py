"""An attentive neural process of weather stations: what some stations read tells what others read, by distance on the globe, height and the sun."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DAYS, KNOWN, ASKED, DIM = 3, 40, 24, 40
RADIUS = 6371.0
STEPS = 1


def directions(units, like):
    """Unit vectors from whole ten thousandths of a degree of latitude and longitude: [..., 3]."""
    latitude, longitude = (units.float() / 10_000 * math.pi / 180).unbind(-1)
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], -1)


def arcs(one, other, like):
    """Kilometres between stations, by half the chord."""
    chord = (one[:, :, None] - other[:, None]).square().sum(-1).add(1e-12).sqrt()
    return 2 * RADIUS * (chord / 2).clamp_max(1).asin()


def nearness(kilometres, like):
    return -(kilometres / 40).square()


def sun(minutes, units, like):
    """How high the sun stands, as its sine, and the time of the year. minutes: since 1970."""
    day = minutes.float() / 1440
    hour = minutes.remainder(1440).float() / 60
    year = 2 * math.pi * (day.remainder(365.2425) / 365.2425)
    tilt = -0.4091 * (year + 2 * math.pi * 10 / 365.2425).cos()
    latitude, longitude = (units.float() / 10_000 * math.pi / 180).unbind(-1)
    turn = math.pi * (hour - 12)[:, None] / 12 + longitude
    return latitude.sin() * tilt.sin()[:, None] + latitude.cos() * tilt.cos()[:, None] * turn.cos(), torch.stack([year.sin(), year.cos()], -1)


def centigrade(tenths, like):
    """From whole hundredths of a kelvin, in spreads around the mean of the day."""
    kelvin = tenths.float() / 100
    return (kelvin - kelvin.mean(-1, keepdim=True)) / 4


def sinking(pascals, metres, like):
    """What a barometer shows beyond what its height alone makes, in hectopascals."""
    still = 101_325 * (-metres.float() / 8434).exp()
    return (pascals.float() - still) / 100


def dew(kelvin, humidity, like):
    """The share of water that air can hold, by Magnus' formula."""
    warm = kelvin.float() / 100 - 273.15
    return humidity.float() / 100 * (17.62 * warm / (243.12 + warm)).exp()


def gathered(values, spreads, like):
    """Bayes' rule, reading by reading: the mean and the spread of a hidden variable after all of them. values, spreads: [B, N, D]."""
    mean, weight = torch.zeros_like(values[:, 0]), torch.ones_like(values[:, 0])
    for value, spread in zip(values.unbind(1), spreads.unbind(1), strict=True):
        weight = weight + spread.pow(-2)
        mean = mean + (value - mean) * spread.pow(-2) / weight
    return mean, weight.rsqrt()


def divergence(mean, spread, other, wide, like):
    """From one Gaussian to another, dimension by dimension."""
    ratio = spread / wide
    return 0.5 * (ratio.square() - 1) - ratio.log() + 0.5 * ((mean - other) / wide).square()


def likelihood(value, mean, spread, like):
    """Of readings under Gaussians."""
    return -0.5 * ((value - mean) / spread).square() - spread.log() - 0.9189385


class Process(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.read = nn.Linear(6, DIM), nn.Linear(DIM + 3, DIM)
        self.mean, self.spread = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.query, self.key, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.out = nn.Sequential(nn.Linear(3 * DIM, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, units, metres, minutes, kelvin, pascals, humidity):
        like = self.place.weight.detach()
        if torch.is_autocast_enabled("cpu"):
            like = like.to(torch.get_autocast_dtype("cpu"))
        with torch.autocast("cpu", enabled=False):
            direction = directions(units, like)
            near = nearness(arcs(direction[:, KNOWN:], direction[:, :KNOWN], like), like)
            height, season = sun(minutes, units, like)
            warm, low_pressure, water = centigrade(kelvin, like), sinking(pascals, metres, like), dew(kelvin, humidity, like)
        facts = torch.cat([direction, height[..., None], season[:, None].expand(-1, KNOWN + ASKED, -1)], -1)
        places = F.silu(self.place(facts.type_as(like)))
        readings = torch.stack([warm, low_pressure / 10, water], -1).type_as(like)
        told = F.silu(self.read(torch.cat([places, readings], -1)))
        values, spreads = self.mean(told).float(), 0.3 + F.softplus(self.spread(told).float())
        with torch.autocast("cpu", enabled=False):
            prior, narrow = gathered(values[:, :KNOWN], spreads[:, :KNOWN], like)
            after, narrower = gathered(values, spreads, like)
            gap = divergence(after, narrower, prior, narrow, like)
        scores = self.query(places[:, KNOWN:]) @ self.key(places[:, :KNOWN]).mT / DIM**0.5
        found = (scores.float() + near).softmax(-1).type_as(told) @ self.value(told[:, :KNOWN])
        hidden = (after + narrower).type_as(told)[:, None].expand(-1, ASKED, -1)
        mean, spread = self.out(torch.cat([places[:, KNOWN:], found, hidden], -1)).float().unbind(-1)
        with torch.autocast("cpu", enabled=False):
            chance = likelihood(warm[:, KNOWN:], mean, 0.05 + F.softplus(spread), like)
        return {"mean": mean, "chance": chance, "loss": gap.float().sum(-1).mean() / 10 - chance.float().mean()}


def make():
    torch.manual_seed(0)
    return Process()


def batch():
    generator = torch.Generator().manual_seed(8)
    count = KNOWN + ASKED
    latitude = torch.randint(468_000, 482_000, (DAYS, count), generator=generator)
    longitude = torch.randint(72_000, 98_000, (DAYS, count), generator=generator)
    metres = torch.randint(200, 2600, (DAYS, count), generator=generator)
    still = 101_325 * (-metres.double() / 8434).exp()
    return {
        "units": torch.stack([latitude, longitude], -1),
        "metres": metres,
        "minutes": torch.randint(27_000_000, 28_500_000, (DAYS,), generator=generator),
        "kelvin": (29_100 - 0.65 * metres.float() + 150 * torch.randn(DAYS, count, generator=generator)).long(),
        "pascals": (still + 500 * torch.randn(DAYS, count, generator=generator)).round().long(),
        "humidity": torch.randint(30, 99, (DAYS, count), generator=generator),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
