"""Maps of the microwave sky: detectors behind a plate that turns, samples that are put into pixels, and a network that takes the atmosphere off."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DETECTORS, TICKS, DIM, CELLS, COLUMNS = 8, 384, 32, 8, 240
EARTH, LAYER = 6371.0, 4.0
STEPS = 1


def plate(sample, turns, rate):
    """The angle of the plate at each sample. sample: whole numbers, [TICKS]; turns: in a thousand seconds; rate: samples in a second."""
    return 2 * math.pi * torch.remainder(sample * turns, 1000 * rate).float() / (1000 * rate)


def pointing(degrees):
    """Unit vectors. degrees: hundredths of azimuth and elevation, whole numbers, [..., 2]."""
    azimuth, elevation = torch.deg2rad(degrees.float() / 100).unbind(-1)
    return torch.stack([elevation.cos() * azimuth.cos(), elevation.cos() * azimuth.sin(), elevation.sin()], -1)


def apart(first, second):
    """The angle between two directions. Both: unit vectors, [..., 3]."""
    return torch.atan2(torch.linalg.cross(first, second).norm(dim=-1), (first * second).sum(-1))


def pixel(degrees):
    """The number of the pixel that a detector looks at, ring by ring. degrees: hundredths, whole numbers, [..., 2]."""
    ring, column = degrees[..., 1] // 100, degrees[..., 0] // 100
    return ring * COLUMNS + column


def hits(cell):
    """How often each cell of the map was seen. cell: whole numbers, [DETECTORS, TICKS]."""
    seen = torch.zeros(CELLS, dtype=torch.long)
    return seen.index_add(0, cell.flatten(), torch.ones_like(cell.flatten())).float()


def trusted(spread):
    """The weight of each detector, by its spread. spread: microkelvins, whole numbers, [DETECTORS]."""
    weight = (spread.float() / 1e6).square().reciprocal()
    return weight / weight.sum()


def warmth(millis):
    """Degrees Celsius of a load that is near freezing. millis: thousandths of a kelvin, whole numbers."""
    return (millis - 273_150).float() / 1000


def slant(height):
    """Kilometres of air that a detector looks through, on a round Earth. height: the elevation's sine."""
    below = EARTH * height.float()
    return (2 * EARTH * LAYER + LAYER * LAYER) / (below + torch.sqrt(below.square() + 2 * EARTH * LAYER + LAYER * LAYER))


def emitted(depth):
    """What share of a black body's light air of this optical depth emits."""
    return -torch.expm1(-depth.float())


def smoothed(signal, width):
    """The mean of the last samples at each sample. signal: [DETECTORS, TICKS]"""
    return signal.float().unfold(-1, width, 1).mean(-1)


class Sky(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.inner = nn.Conv1d(7, DIM, 7, padding=3), nn.Conv1d(DIM, DIM, 5, padding=2)
        self.air = nn.Conv1d(DIM, 1, 1)

    def forward(self, sample, turns, rate, degrees, star, spread, millis, water, counts):
        kind = self.enter.weight.dtype
        with torch.autocast("cpu", enabled=False):
            turn = plate(sample, turns, rate).expand(DETECTORS, -1)
            look = pointing(degrees)
            gap, place = apart(look, pointing(star)), pixel(degrees)
            warm, through = warmth(millis), slant(look[..., 2])
            light = emitted(water.float() / 1e5 * through)
            level = smoothed(counts / 100, 16)
            weight, seen = trusted(spread), hits(place % CELLS)
            told = torch.stack([turn.cos(), turn.sin(), gap * 10, warm, light * 10, through / 10, F.pad(level, (15, 0), value=7.0) / 10], 1)
        x = F.gelu(self.enter(told.to(kind)))
        x = x + F.gelu(self.inner(x))
        air = self.air(x).squeeze(1).float()
        with torch.autocast("cpu", enabled=False):
            clean = counts / 1000 - 0.1 * air - light
            tiles = torch.zeros(CELLS).index_add(0, (place % CELLS).flatten(), (clean * weight[:, None]).flatten()) * DETECTORS / seen.clamp_min(1)
            wave = (clean * torch.cos(4 * turn)).mean(-1)
        return {"tiles": tiles, "wave": wave, "gap": gap, "warm": warm, "seen": seen, "through": through, "place": place, "level": level}


def make():
    torch.manual_seed(0)
    return Sky()


def batch():
    generator = torch.Generator().manual_seed(241)

    def whole(least, most, *size):
        return torch.randint(least, most, size, generator=generator)

    degrees = torch.stack([8000 + whole(0, 40, DETECTORS, TICKS).cumsum(-1), 5000 + whole(-4, 6, DETECTORS, TICKS).cumsum(-1)], -1)
    return {
        "sample": torch.arange(TICKS) + 18_000,
        "turns": torch.tensor(2117),
        "rate": torch.tensor(200),
        "degrees": degrees,
        "star": degrees + whole(100, 500, DETECTORS, TICKS, 2),
        "spread": whole(900, 4000, DETECTORS),
        "millis": 273_150 + whole(-900, 900, DETECTORS, TICKS),
        "water": whole(300, 1500, DETECTORS, TICKS),
        "counts": whole(600, 800, DETECTORS, TICKS),
    }


def loss(output):
    told = output["gap"].mean() + output["warm"].square().mean() + output["through"].mean() / 10 + output["level"].mean() / 10
    return output["tiles"].square().mean() + output["wave"].square().mean() + 0.1 * told + 1e-4 * output["seen"].mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
