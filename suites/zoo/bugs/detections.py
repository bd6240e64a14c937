"""Vision: a loss of boxes that nearly meet, and rays through a volume."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    inside = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp_min(0).prod(-1)
    return inside / ((a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - inside)


def aligned_loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One less the overlap, with what boxes cost that are apart, the more if along a diagonal (SIoU). Corners are x, y, x, y."""
    width, height = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).unbind(-1)
    across, down = ((b[:, :2] + b[:, 2:] - a[:, :2] - a[:, 2:]) * 0.5).unbind(-1)  # culprit: boxes-that-nearly-meet
    away = torch.pow(across**2 + down**2, 0.5)  # culprit: boxes-that-nearly-meet
    first, second = across.abs() / away, down.abs() / away
    sine = torch.where(first > 0.5**0.5, second, first)
    angle = torch.cos(torch.arcsin(sine) * 2 - math.pi / 2)
    strength = angle - 2
    distance = 2 - torch.exp(strength * (across / width) ** 2) - torch.exp(strength * (down / height) ** 2)
    sizes, others = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    unlike = (sizes - others).abs() / torch.max(sizes, others)
    return 1 - overlap(a, b) + 0.5 * (distance + ((1 - torch.exp(-unlike)) ** 4).sum(-1))


def boxes(dtype: torch.dtype, widened: bool) -> torch.Tensor:
    """Losses of twenty boxes in half that are one or two steps of 2^-13, which it holds, off their targets; the square of that is nought. NaN."""
    corner, size = (400 * (1 + uniform(20, 2))).round(), (400 * (1 + uniform(20, 2, seed=1))).round()
    target = torch.cat([corner, corner + size], -1)
    move = ((1 + uniform(20, 2, seed=2)).round() * torch.where(normal(20, 2, seed=3) > 0, 1.0, -1.0)).repeat(1, 2)
    found, target = ((target + move) / 8192).to(HALF).to(dtype), (target / 8192).to(HALF).to(dtype)
    return wider(aligned_loss(wider(found), wider(target)) if widened else aligned_loss(found, target))


class Planes(nn.Module):
    """A volume as the product of three planes of features, read where a ray is, in [-1, 1]."""

    def __init__(self, size: int, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.planes = nn.Parameter(1 + 0.3 * normal(3, channels, size, size).to(LOW).to(dtype))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack([points[:, [0, 1]], points[:, [0, 2]], points[:, [1, 2]]])
        read = functional.grid_sample(wider(self.planes), wider(pairs)[:, None], align_corners=True)
        return read[:, :, 0].prod(0).sum(0)


def tomogram(dtype: torch.dtype, placed: torch.dtype, size: int = 257, length: int = 400) -> torch.Tensor:
    """What three rays of four hundred points meet in a volume of 257 cells a side; in bfloat16 points are up to half a cell off. Off by 19 %."""
    along = torch.linspace(-1, 1, length, dtype=torch.float64).to(placed)[None, :, None]
    start, slope = 0.1 * normal(3, 1, 3), 0.8 * functional.normalize(normal(3, 1, 3, seed=1), dim=-1)
    points = start.to(LOW).to(placed) + along * slope.to(LOW).to(placed)  # culprit: rays-through-a-volume
    return Planes(size, 4, dtype)(points.reshape(-1, 3))


BUGS = (
    Bug("boxes-that-nearly-meet", "meituan/YOLOv6#417", ("amplified-rounding", "underflow"), "aten.add.Tensor", lambda: boxes(HALF, False),
        lambda: boxes(HALF, True)),
    Bug("rays-through-a-volume", "electronmicroscopy/quantem#280", ("amplified-rounding", "integer-rounding"), "aten._to_copy.default",
        lambda: tomogram(LOW, LOW), lambda: tomogram(LOW, WIDE),
        expected_miss="the places are rounded in one function and a sample between cells, which enlarges that eighteen times, is taken in another; "
        "a steep function is one of a single operand"),
)  # fmt: skip
