"""Estimates how long a taxi trip takes: a GRU over the fixes of its GPS trace, with the calendar, the map's cells and the classes of roads."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRIPS, FIXES, SIZE, ROWS, COLUMNS, CLASSES = 8, 96, 24, 48, 96, 3
EARTH, WEEK, SOUTH, WEST, CELL = 6371.0, 604800, 39_700_000, 116_100_000, 7000
STEPS = 1


def radians(micro):
    """Angles of whole millionths of a degree."""
    return micro.double().div(1e6).deg2rad().float()


def leg_lengths(lat, lon, like):
    """Kilometres from each fix to the next, by the haversine formula. lat, lon: millionths of a degree, [B, N]."""
    north = radians(lat[:, 1:] - lat[:, :-1])
    east = radians(lon[:, 1:] - lon[:, :-1])
    across = radians(lat[:, 1:]).cos() * radians(lat[:, :-1]).cos()
    chord = (north / 2).sin().square() + across * (east / 2).sin().square()
    return 2 * EARTH * chord.sqrt().asin()


def headings(lat, lon, like):
    """The direction of each leg, as a unit vector: [B, N - 1, 2]."""
    north = (lat[:, 1:] - lat[:, :-1]).float()
    east = (lon[:, 1:] - lon[:, :-1]).float() * radians(lat[:, 1:]).cos()
    return F.normalize(torch.stack([east, north], -1), dim=-1)


def calendar(seconds, like, harmonics=6):
    """Where in the week a fix is, as waves. seconds: Unix time, whole. Returns [B, N, 2 * harmonics]."""
    turns = (seconds % WEEK).float() / WEEK
    angles = 2 * math.pi * turns[..., None] * torch.arange(1, harmonics + 1)
    return torch.cat([angles.cos(), angles.sin()], -1)


def cells(lat, lon, like):
    """The number of the map's cell in which each fix lies."""
    row = ((lat - SOUTH) // CELL).clamp(0, ROWS - 1)
    column = ((lon - WEST) // CELL).clamp(0, COLUMNS - 1)
    return row * COLUMNS + column


def within_cell(lat, lon, like):
    """How far into its cell a fix is, from nought to one."""
    return torch.stack([(lat - SOUTH) % CELL, (lon - WEST) % CELL], -1).float() / CELL


def driven(legs, since_morning, like):
    """Kilometres of the trip up to each fix. since_morning: whole kilometres that the car had driven before, [B, 1]."""
    total, out = torch.zeros_like(legs[:, 0]), []
    for k in range(legs.shape[1]):
        total = total + legs[:, k]
        out.append(total)
    return torch.stack(out, 1)


def class_speeds(legs, gaps, road, like):
    """The mean speed on each class of roads, in km/h, and how many legs are on it."""
    speeds = (3600 * legs / gaps).flatten()
    count = torch.zeros(CLASSES).index_add_(0, road.flatten(), torch.ones(road.numel()))
    total = torch.zeros(CLASSES).index_add_(0, road.flatten(), speeds.float())
    return total / count.clamp_min(1), count


def residual(correction, usual, seconds, like):
    """The logarithm of the predicted time over the real one. usual: seconds that such a trip takes as a rule, correction: what the network adds."""
    return correction.float() + (usual.float() / seconds.float()).log()


class Estimator(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Embedding(ROWS * COLUMNS, SIZE)
        self.inputs = nn.Linear(SIZE + 12 + 2 + 2 + 2 + 1, SIZE)
        self.rnn = nn.GRU(SIZE, SIZE, batch_first=True)
        self.head = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, 1))

    def forward(self, lat, lon, seconds, road, since_morning, usual, took):
        h = self.cell(cells(lat, lon, self.head[0].weight))
        like = self.head[0](h)
        with torch.autocast("cpu", enabled=False):
            legs, gaps = leg_lengths(lat, lon, like).float(), seconds[:, 1:] - seconds[:, :-1]
            speed, count = class_speeds(legs, gaps, road, like)
            km = driven(legs, since_morning, like)
            week = calendar(seconds, like)
            way = torch.stack([legs, km / 4, speed[road] / 50], -1)
            rows = [week[:, 1:], within_cell(lat, lon, like)[:, 1:], headings(lat, lon, like), way]
            facts = torch.cat([each.float() for each in rows], -1)
        x = self.inputs(torch.cat([h[:, 1:], facts.to(h.dtype)], -1))
        hidden, _ = self.rnn(x)
        correction = 0.2 * self.head(hidden[:, -1]).squeeze(-1)
        with torch.autocast("cpu", enabled=False):
            off = residual(correction, usual, took, correction)
        return {"off": off, "km": km, "speed": speed, "count": count, "loss": F.huber_loss(off.float(), torch.zeros_like(off).float(), delta=0.1)}


def make():
    torch.manual_seed(0)
    return Estimator()


def batch():
    generator = torch.Generator().manual_seed(12)
    gaps = torch.randint(4, 13, (TRIPS, FIXES), generator=generator)
    seconds = 1_700_000_000 + torch.randint(WEEK, (TRIPS, 1), generator=generator) + gaps.cumsum(1)
    way = 6.28 * torch.rand(TRIPS, 1, generator=generator) + 0.2 * torch.randn(TRIPS, FIXES, generator=generator).cumsum(1) / 3
    metres = gaps * (8 + 4 * torch.rand(TRIPS, FIXES, generator=generator))
    lat = 39_900_000 + torch.randint(40_000, (TRIPS, 1), generator=generator) + (9 * metres * way.sin()).cumsum(1).long()
    lon = 116_380_000 + torch.randint(40_000, (TRIPS, 1), generator=generator) + (11.7 * metres * way.cos()).cumsum(1).long()
    road = (torch.rand(TRIPS, FIXES - 1, generator=generator) > 0.85).long() + (torch.rand(TRIPS, FIXES - 1, generator=generator) > 0.9).long()
    took = (seconds[:, -1] - seconds[:, 0]) + 600
    usual = (took * (0.95 + 0.1 * torch.rand(TRIPS, generator=generator))).long()
    return {
        "lat": lat, "lon": lon, "seconds": seconds, "road": road, "since_morning": torch.randint(30, 120, (TRIPS, 1), generator=generator),
        "usual": usual, "took": took,
    }  # fmt: skip


def loss(output):
    return output["loss"]


optimizer = None
