"""Where on Earth a photograph was taken, after PIGEON and GeoCLIP: distances to known places, tiles of a map, waves of a place, hours and slopes."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PHOTOS, PLACES, DIM, PATCHES = 6, 40, 32, 16
RADIUS, NEAR, ZOOM = 6371.0, 60.0, 10
STEPS = 1


def radians(millionths):
    """Of degrees, as maps give them."""
    return millionths.float() * (math.pi / 180 / 1e6)


def kilometres(latitude, longitude, others, beyond):
    """From each photograph to each place, by haversines. Differences are those of whole numbers."""
    high, wide = radians(latitude[:, None] - others), radians(longitude[:, None] - beyond)
    both = radians(latitude)[:, None].cos() * radians(others).cos()
    half = (high / 2).sin().square() + both * (wide / 2).sin().square()
    return 2 * RADIUS * half.clamp(0, 1).sqrt().asin()


def nearness(distance):
    """Labels that know how near a wrong place is."""
    behind = distance - distance.min(1, keepdim=True).values
    return torch.exp(-behind / NEAR)


def within_tile(longitude):
    """How far into its tile of the map a place is."""
    across = (longitude.float() / 360e6 + 0.5) * 2**ZOOM
    return across - across.floor()


def waves(latitude, longitude):
    """Sines of a place, from once around the Earth to 256 times."""
    turn = torch.stack([longitude, latitude], -1).float() / 360e6
    angle = 2 * math.pi * turn[..., None] * 2.0 ** torch.arange(0, 9)
    return torch.cat([angle.sin(), angle.cos()], -1).flatten(-2)


def clock(seconds):
    """The hour of the day as a point on a circle, of seconds since 1970."""
    angle = (seconds % 86_400).float() * (2 * math.pi / 86_400)
    return torch.stack([angle.cos(), angle.sin()], -1)


def slopes(height, spacing=30):
    """Of the ground, along a line; heights are centimetres."""
    metres = (height[:, 1:] - height[:, :-1]).float() / 100
    return metres / spacing


def chord(one, other):
    """Kilometres through the Earth, between points on a sphere of radius one."""
    apart = (one[:, None] - other) * RADIUS
    return (apart * apart).sum(-1).clamp_min(1e-6).sqrt()


def on_sphere(latitude, longitude):
    high, wide = radians(latitude), radians(longitude)
    return torch.stack([high.cos() * wide.cos(), high.cos() * wide.sin(), high.sin()], -1)


class Geolocation(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.mix = nn.Linear(48, DIM), nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True)
        self.facts, self.where = nn.Linear(2 + 7, DIM), nn.Sequential(nn.Linear(36, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.table, self.guess = nn.Linear(1, DIM), nn.Linear(DIM, 3)

    def forward(self, pixels, latitude, longitude, others, beyond, seconds, height):
        kind = self.guess.weight.dtype
        facts = torch.cat([clock(seconds), 20 * slopes(height)], -1)
        hidden = self.mix(self.patch((pixels.float() / 127.5 - 1).to(kind))).mean(1) + self.facts(facts.to(kind))
        place = self.where(waves(others, beyond).to(kind)) + self.table(within_tile(beyond)[:, None].to(kind))
        logits = F.normalize(hidden.float(), dim=-1).to(kind) @ F.normalize(place.float(), dim=-1).to(kind).T
        label = nearness(kilometres(latitude, longitude, others, beyond))
        guess = F.normalize(self.guess(hidden.to(kind)).float(), dim=-1)
        missed = chord(guess, on_sphere(others, beyond))
        return {"logits": logits, "label": label, "missed": missed / 1000}


def make():
    torch.manual_seed(0)
    return Geolocation()


def batch():
    generator = torch.Generator().manual_seed(83)

    def whole(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    ground = whole(150_000, 250_000, PHOTOS, 1)
    return {
        "pixels": whole(0, 256, PHOTOS, PATCHES, 48),
        "latitude": 47_000_000 + whole(0, 3_000_000, PHOTOS),
        "longitude": 131_000_000 + whole(0, 4_000_000, PHOTOS),
        "others": 46_000_000 + whole(0, 5_000_000, PLACES),
        "beyond": 117_000_000 + whole(0, 6_000_000, PLACES),
        "seconds": 1_700_000_000 + whole(0, 40_000_000, PHOTOS),
        "height": ground + whole(-300, 300, PHOTOS, 8).cumsum(1),
    }


def loss(output):
    aim = output["label"].float() / output["label"].float().sum(1, keepdim=True)
    return -(aim * (8 * output["logits"].float()).log_softmax(1)).sum(1).mean() + 0.1 * output["missed"].mean()


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2)
