"""Two scans of a place become one: features of points, soft partners, and the turn and shift that fit best, a few times over."""

import torch
import torch.nn.functional as F
from torch import nn

SCANS, POINTS, DIM, ROUNDS, NEAR = 3, 72, 32, 2, 8
CELL = 250
STEPS = 1


def metres(points):
    """From millimetres in the map's frame, which begins half a kilometre away."""
    return points.float() / 1000


def centred(points, weight):
    middle = (points * weight[..., None]).sum(1, keepdim=True) / weight.sum(1)[:, None, None]
    return points - middle, middle


def squared_distances(one, other):
    with torch.autocast("cpu", enabled=False):
        return (one[:, :, None] - other[:, None]).float().square().sum(-1)


def nearest_offsets(points):
    """From each point to those around it: [B, N, K, 3]."""
    near = squared_distances(points, points).topk(NEAR + 1, largest=False).indices[..., 1:]
    around = points[torch.arange(len(points))[:, None, None], near]
    return around - points[:, :, None]


def rotation(source, target, weight):
    """Kabsch: the turn that takes one onto the other, for weighted pairs."""
    with torch.autocast("cpu", enabled=False):
        moment = (source * weight[..., None]).mT @ target
        u, _, vt = torch.linalg.svd(moment)
        sign = torch.det(vt.mT @ u.mT).sign()
        flip = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
        return vt.mT @ (flip[..., None] * u.mT)


def moved(points, turn, source_middle, target_middle):
    """Points of the first scan, in the second one's frame."""
    with torch.autocast("cpu", enabled=False):
        return (points - source_middle) @ turn.mT + target_middle


def residuals(points, partners):
    """What is left between partners, in metres."""
    return points - partners


def turned_by(turn):
    """The angle of a rotation, in radians."""
    skew = turn - turn.mT
    sine = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1).norm(dim=-1) / 2
    return torch.atan2(sine, (turn.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2)


def place_in_cell(points):
    """Where in its voxel a point is, from zero to one."""
    return (points % CELL).float() / CELL


class PointFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(6, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.mix = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM))

    def forward(self, offsets, place):
        place = place[:, :, None].expand(*offsets.shape[:3], 3)
        x = self.local(torch.cat([offsets, place], -1).to(self.local[0].weight.dtype)).amax(2)
        return x + self.mix(x)


class Register(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = PointFeatures()
        self.confidence = nn.Linear(DIM, 1)

    def forward(self, source, target, partner):
        with torch.autocast("cpu", enabled=False):
            source_place, target_place = place_in_cell(source), place_in_cell(target)
            source, target = metres(source), metres(target)
            source_near, target_near = nearest_offsets(source), nearest_offsets(target)
        one, other = self.features(source_near, source_place), self.features(target_near, target_place)
        sure = self.confidence(one)[..., 0].float().sigmoid()
        here, angle = source, []
        for _ in range(ROUNDS):
            far = squared_distances(here, target)
            like = torch.einsum("bnd,bmd->bnm", F.normalize(one, dim=-1), F.normalize(other, dim=-1)).float()
            match = (4 * like - far / 0.02).softmax(-1)
            with torch.autocast("cpu", enabled=False):
                middle = target[:, :1]
                guess = match @ (target - middle) + middle
                (a, ca), (b, cb) = centred(here, sure), centred(guess, sure)
            turn = rotation(a, b, sure)
            here = moved(here, turn, ca, cb)
            angle.append(turned_by(turn))
        true = target.gather(1, partner[..., None].expand_as(target))
        left = residuals(here, true)
        return {"residual": left, "angle": torch.stack(angle), "sure": sure, "loss": (sure * left.square().sum(-1)).mean() - 1e-4 * sure.log().mean()}


def make():
    torch.manual_seed(0)
    return Register()


def batch():
    generator = torch.Generator().manual_seed(65)
    points = torch.rand(SCANS, POINTS, 3, generator=generator) * torch.tensor([9000, 9000, 2500])
    angle = torch.tensor([0.004, -0.007, 0.01])
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros(SCANS)
    turn = torch.stack([cos, -sin, none, sin, cos, none, none, none, none + 1], -1).view(-1, 3, 3)
    order = torch.stack([torch.randperm(POINTS, generator=generator) for _ in range(SCANS)])
    other = (points - 4500) @ turn.mT + 4500 + torch.tensor([40, -25, 10]) + 4 * torch.randn(points.shape, generator=generator)
    target = torch.empty_like(other).scatter_(1, order[..., None].expand_as(other), other)
    corner = torch.tensor([412_000, 388_000, 21_000])
    return {"source": points.round().long() + corner, "target": target.round().long() + corner, "partner": order}


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
