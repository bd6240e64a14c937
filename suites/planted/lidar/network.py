"""Points of a laser: pillars with counts and means, shapes of neighbourhoods, a set transformer, and features put back on points."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
PRECISIONS = ("bf16-mixed", "16-mixed")
"""A map's coordinates are inputs, which a converted model would be given in 16 bits."""
SCENES, POINTS, NEIGHBOURS, INDUCED, SEEDS, WIDTH, HEADS, ACROSS, KINDS = 2, 1536, 8, 16, 192, 48, 4, 2, 10
CELL = 12.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def centred(points: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Places about the middle of the scene, of places on a map."""
    return points - points.mean(1, keepdim=True)


def pillar_of(points: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which pillar of the ground a point stands on."""
    cell = torch.floor((points[..., :2] - points[..., :2].amin(1, keepdim=True)) / CELL).long().clamp(0, ACROSS - 1)
    return cell[..., 0] * ACROSS + cell[..., 1]


def counted(pillar: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many points a pillar has."""
    place = (pillar + ACROSS * ACROSS * torch.arange(SCENES).unsqueeze(-1)).flatten()
    counts = torch.zeros(SCENES * ACROSS * ACROSS).index_add(0, place, torch.ones(len(place)))
    return counts.float().reshape(SCENES, -1)


def squared(one: torch.Tensor, other: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Squared distances of all pairs."""
    return (one.unsqueeze(2) - other.unsqueeze(1)).square().sum(-1)


def shape(group: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The covariance of a neighbourhood."""
    middle = group.mean(-2, keepdim=True)
    apart = group - middle
    return (apart.unsqueeze(-1) * apart.unsqueeze(-2)).mean(-3)


def shares(distance: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of the three nearest seeds, by the inverse distance; a seed itself is at none."""
    inverse = 1 / (distance.sqrt() + 1e-8)
    return inverse / inverse.sum(-1, keepdim=True)


def beams(points: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The angle of each point, as waves of 16 to 512 turns."""
    angle = torch.atan2(points[..., 1], points[..., 0])
    turns = angle.unsqueeze(-1) * 2.0 ** torch.arange(4, 10).float()
    return torch.cat([turns.sin(), turns.cos()], -1)


class Induced(nn.Module):
    """A set looks at a few points, and these at the set."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, INDUCED, WIDTH))
        self.gather, self.spread = (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
        self.norm, self.last, self.wide = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        few = self.points.expand(len(x), -1, -1).to(x.dtype)
        few = self.gather(few, x, x, need_weights=False)[0]
        x = self.norm(x + self.spread(x, few, few, need_weights=False)[0])
        return self.last(x + functional.relu(self.wide(x)))


class Lidar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seed, self.beam, self.pillar = nn.Linear(12, WIDTH), nn.Linear(12, WIDTH), nn.Linear(2, WIDTH)
        self.sets, self.norm = nn.ModuleList(Induced() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.kind = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, KINDS))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.seed.weight)
        with torch.autocast(points.device.type, enabled=False):
            places = centred(points.float(), low)
            pillar = pillar_of(places, low)
            counts = counted(pillar, low)
            height = torch.zeros_like(counts).scatter_add(1, pillar, places[..., 2]) / counts.clamp_min(1)
            ground = torch.stack([counts.gather(1, pillar) / POINTS, height.gather(1, pillar)], -1)
            seeds = places[:, :SEEDS]
            distance = squared(seeds, places, low)
            nearest = distance.detach().topk(NEIGHBOURS, largest=False).indices
            group = torch.stack([each[near] for each, near in zip(places, nearest, strict=True)])
            form = shape(group, low).flatten(-2)
            around = torch.cat([form / 0.1, seeds / 10], -1)
            way = squared(places, seeds, low).topk(3, largest=False)
            weight = shares(way.values, low)
            waves = beams(places, low)
        x = self.seed(around)
        for each in self.sets:
            x = each(x)
        back = torch.stack([each[near] for each, near in zip(x, way.indices, strict=True)])
        back = (back.float() * weight.unsqueeze(-1)).sum(-2)
        own = self.norm(self.beam(waves) + self.pillar(ground))
        logits = self.kind(torch.cat([back, own.float()], -1))
        return {"logits": logits, "loss": functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Lidar()


def batch() -> dict[str, torch.Tensor]:
    """A street of 24 by 20 metres, some hundred metres from the map's corner; most points are near the ground."""
    generator = torch.Generator().manual_seed(2)
    flat = torch.rand(SCENES, POINTS, 2, generator=generator) * torch.tensor([24.0, 20.0])
    up = torch.rand(SCENES, POINTS, 1, generator=generator).pow(3) * 4
    return {
        "points": torch.cat([flat, up], -1) + torch.tensor([712.0, 486.0, 31.0]),
        "labels": torch.randint(0, KINDS, (SCENES, POINTS), generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
