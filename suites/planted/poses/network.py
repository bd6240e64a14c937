"""Poses in three dimensions from key points of a video, as VideoPose3D lifts them: temporal convolutions, rotations, a skeleton, a camera."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VIDEOS, FRAMES, JOINTS, SIZE, RATE = 3, 48, 13, 48, 50.0
PARENTS = (-1, 0, 1, 2, 0, 4, 5, 0, 7, 8, 9, 8, 11)
FOCAL, CENTRE = 1145.0, 512.0
STEPS = 1


def centred(quarters: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Key points relative to the hip, in pixels. quarters: whole quarters of a pixel, [B, T, J, 2]."""
    pixels = quarters.float() / 4
    return pixels - pixels[:, :, :1]


def velocities(quarters: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Pixels a second."""
    pixels = quarters.float() / 4
    return (pixels[:, 1:] - pixels[:, :-1]) * RATE


def gait(frame: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Waves of steps, two a second and slower. frame: the number of each frame in its recording, [B, T]."""
    seconds = frame.float() / RATE
    turns = 6.283185 * seconds[..., None] / torch.tensor([0.5, 1.0, 2.0])
    return torch.cat([turns.sin(), turns.cos()], -1)


def rotation(tenths: torch.Tensor) -> torch.Tensor:
    """Matrices of three angles in whole tenths of a degree: [..., 3, 3]."""
    angle = tenths.float() * (3.14159265 / 1800)
    (a, b, c), (d, e, f) = angle.cos().unbind(-1), angle.sin().unbind(-1)
    rows = [a * b, a * e * f - d * c, a * e * c + d * f, d * b, d * e * f + a * c, d * e * c - a * f, -e, b * f, b * c]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def turned(matrix: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far each joint turns from frame to frame, in radians. matrix: [B, T, J, 3, 3]."""
    change = (matrix[:, 1:] - matrix[:, :-1]).square().sum((-1, -2))
    return 2 * (change / 8).sqrt().clamp_max(1).asin()


def orthogonal(raw: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Rotations of six numbers each, by Gram and Schmidt: [..., 3, 3]."""
    first, second = raw.float().unflatten(-1, (2, 3)).unbind(-2)
    first = F.normalize(first, dim=-1)
    second = F.normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def skeleton(rotations: torch.Tensor, bones: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Places of the joints beside the hip, each after its parent: [B, T, J, 3], in metres."""
    turns, places = [rotations[:, :, 0]], [torch.zeros_like(bones[:1]).expand(*rotations.shape[:2], 3)]
    for joint in range(1, JOINTS):
        turns.append(turns[PARENTS[joint]] @ rotations[:, :, joint])
        places.append(places[PARENTS[joint]] + (turns[joint] @ bones[joint - 1 : joint].mT)[..., 0].expand_as(places[0]))
    return torch.stack(places, 2)


def before_camera(hip: torch.Tensor, camera: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The hip's place before the camera, in metres. Both are whole millimetres in the hall."""
    return hip.float() / 1000 - camera.float() / 1000


def projected(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Pixels of places before the camera."""
    return FOCAL * places[..., :2] / places[..., 2:].clamp_min(0.5) + CENTRE


def pixel_loss(found: torch.Tensor, seen: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The mean squared distance in pixels, over a thousand."""
    return (found - seen).square().sum(-1).mean() / 1000


class Lift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(JOINTS * 4 + 6 + JOINTS, SIZE, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv1d(SIZE, SIZE, 3, padding=3**k, dilation=3**k) for k in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(4, SIZE) for _ in range(3))
        self.out = nn.Conv1d(SIZE, JOINTS * 6, 1)
        self.bones = nn.Parameter(0.25 * torch.randn(JOINTS - 1, 3))

    def forward(self, quarters, frame, tenths, hip, camera):
        low = self.out(torch.ones(1, SIZE, 1).to(self.out.weight.dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            points, speeds, waves = centred(quarters, low), velocities(quarters, low), gait(frame, low)
            angles = turned(rotation(tenths), low)
            beside = torch.cat([speeds / 500, 10 * angles[..., None]], -1).float()
            rows = torch.cat([points / 100, F.pad(beside, (0, 0, 0, 0, 1, 0))], -1).flatten(2)
            rows = torch.cat([rows, waves], -1).mT
        hidden = F.relu(self.first(rows.to(self.first.weight.dtype)))
        for block, norm in zip(self.blocks, self.norms, strict=True):
            hidden = hidden + F.relu(norm(block(hidden)))
        raw = self.out(hidden).mT.unflatten(-1, (JOINTS, 6))
        with torch.autocast("cpu", enabled=False):
            joints = skeleton(orthogonal(raw, low), self.bones.float(), low)
            there = joints + before_camera(hip, camera, low)[:, :, None]
            pixels = projected(there, low)
            penalty = pixel_loss(pixels, quarters.float() / 4, low)
        return {"joints": joints, "loss": penalty + (angles.mean() - 0.05).abs()}


def make():
    torch.manual_seed(0)
    return Lift()


def batch():
    generator = torch.Generator().manual_seed(16)
    walk = torch.randn(VIDEOS, FRAMES, 1, 2, generator=generator).cumsum(1)
    body = 90 * torch.randn(VIDEOS, 1, JOINTS, 2, generator=generator)
    swing = torch.randn(VIDEOS, FRAMES, JOINTS, 2, generator=generator).cumsum(1)
    start = torch.randint(-900, 900, (VIDEOS, 1, JOINTS, 3), generator=generator)
    turning = torch.randint(-14, 15, (VIDEOS, FRAMES, JOINTS, 3), generator=generator).cumsum(1)
    camera = torch.tensor([41_250, 38_125, 30_540])
    path = torch.randint(-30, 31, (VIDEOS, FRAMES, 3), generator=generator).cumsum(1)
    return {
        "quarters": (4 * (700 + 40 * walk / 7 + body + swing)).round().long(),
        "frame": torch.tensor([[180_033], [24_010], [1_200_757]]) + torch.arange(FRAMES),
        "tenths": start + turning,
        "hip": camera + torch.tensor([310, -240, 3600]) + path,
        "camera": camera.expand(VIDEOS, FRAMES, 3).clone(),
    }


def loss(output):
    return output["loss"]


optimizer = None
