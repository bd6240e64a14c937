"""A sheet of triangles that bends: areas, normals, cotangents, strains and curvature in micrometres, and a graph network on its vertices."""

import math

import torch
from torch import nn

SIDE, DIM, ROUNDS, TURNS = 14, 32, 2, 40
FIRST = 41_000
STEPS = 1


def edges(points, faces, low):
    """Two sides of each triangle: [F, 2, 3]."""
    corner = points[faces]
    return (corner[:, 1:] - corner[:, :1]).float()


def normals(sides, low):
    """Twice the area of each triangle, along its normal: [F, 3]."""
    sides = sides.float() / 1000
    return torch.linalg.cross(sides[:, 0], sides[:, 1])


def lengths(normal, low):
    """Of normals: twice the areas."""
    return normal.square().sum(-1).sqrt()


def angles(points, faces, low):
    """At the corners of each triangle, in radians: [F, 3]."""
    corner = points[faces].float()
    one, other = corner.roll(-1, 1) - corner, corner.roll(-2, 1) - corner
    across = torch.linalg.cross(one, other).square().sum(-1).sqrt()
    return torch.atan2(across, (one * other).sum(-1))


def defect(angle, faces, count, low):
    """What the angles around each vertex inside leave of a full turn: the curvature there."""
    around = torch.zeros(count).index_add(0, faces.flatten(), angle.flatten())
    inside = torch.bincount(faces.flatten(), minlength=count) == 6
    return torch.where(inside, 2 * math.pi - around, 0)


def strain(sides, bent, low):
    """How far each triangle has been stretched: half of the change of its Gram matrix, beside its sides."""
    moved = (bent - sides) / 1000
    sides = sides / 1000
    mixed = sides @ moved.mT
    return (mixed + mixed.mT + moved @ moved.mT) / 2 / sides.square().sum(-1).mean()


def volume(points, faces, low):
    """Under the sheet, above its lowest point, in cubic millimetres."""
    height = (points[:, 2] - points[:, 2].min()).float() / 1000
    flat = points[faces][..., :2]
    one, other = ((flat[:, each] - flat[:, 0]).float() / 1000 for each in (1, 2))
    ground = (one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]) / 2
    return (ground * height[faces].mean(1)).sum()


def smoothed(points, faces, low):
    """The heights after many small steps towards their neighbours, in millimetres."""
    height = (points[:, 2] - FIRST).float() / 1000
    one, other = faces.flatten(), faces.roll(1, 1).flatten()
    count = torch.zeros(len(height)).index_add(0, one, torch.ones(len(one)))
    for _ in range(TURNS):
        mean = torch.zeros(len(height)).index_add(0, one, height[other]) / count
        height = height + 0.02 * (mean - height)
    return height


class Rounds(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.norm = nn.Linear(2 * DIM + 3, DIM), nn.LayerNorm(DIM)
        self.update = nn.Sequential(nn.Linear(2 * DIM, DIM), nn.SiLU(), nn.Linear(DIM, DIM))

    def forward(self, hidden, one, other, way):
        told = self.message(torch.cat([hidden[one], hidden[other], way.to(hidden.dtype)], -1))
        heard = torch.zeros(len(hidden), DIM).index_add(0, one, told.float())
        return hidden + self.update(torch.cat([self.norm(hidden), heard.to(hidden.dtype)], -1))


class Mesh(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3, DIM)
        self.rounds = nn.ModuleList(Rounds() for _ in range(ROUNDS))
        self.out = nn.Linear(DIM, 3)

    def forward(self, points, bent, faces, load):
        weight = self.enter.weight.dtype
        low = self.enter(torch.zeros(1, 3, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            sides = edges(points, faces, low)
            normal = normals(sides, low)
            area = lengths(normal, low) / 2
            curved = defect(angles(points, faces, low), faces, len(points), low)
            stretched = strain(sides, edges(bent, faces, low), low)
            smooth = smoothed(points, faces, low)
            beneath = volume(points, faces, low)
            facts = torch.stack([20 * curved, smooth, load.float() / 100], -1)
            one, other = faces.flatten(), faces.roll(1, 1).flatten()
            way = (points[one] - points[other]).float() / 400
        hidden = self.enter(facts.to(weight))
        for each in self.rounds:
            hidden = each(hidden, one, other, way)
        moved = self.out(hidden).float()
        with torch.autocast("cpu", enabled=False):
            wanted = (bent - points).float() / 20
            told = (moved - wanted).square().mean()
            held = (area[:, None] * moved[faces].mean(1)).square().mean() + (normal * moved[faces].mean(1)).sum(-1).square().mean()
            energy = (area * stretched.square().sum((1, 2))).sum() * 1000
        return {"moved": moved, "energy": energy, "volume": beneath, "loss": told + held}


def make():
    torch.manual_seed(0)
    return Mesh()


def batch():
    generator = torch.Generator().manual_seed(47)
    down, across = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    height = 300 * torch.sin(down / 3.0) + 200 * torch.cos(across / 2.5)
    shaken = torch.randint(-40, 41, (SIDE, SIDE, 2), generator=generator)
    points = torch.stack([400 * down + shaken[..., 0], 400 * across + shaken[..., 1], height.round().long()], -1) + FIRST
    number = down * SIDE + across
    corner = [number[:-1, :-1], number[1:, :-1], number[:-1, 1:], number[1:, 1:]]
    faces = torch.cat([torch.stack([corner[0], corner[1], corner[2]], -1), torch.stack([corner[3], corner[2], corner[1]], -1)]).flatten(0, 1)
    points = points.flatten(0, 1)
    return {
        "points": points,
        "bent": points + torch.randint(-9, 10, points.shape, generator=generator),
        "faces": faces.flatten(0, -2),
        "load": torch.randint(0, 200, (len(points),), generator=generator),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
