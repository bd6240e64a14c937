"""Corners: of boxes, of formats, and of division."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def turned_areas(dtype: torch.dtype) -> torch.Tensor:
    """The area of turned boxes by the products of their corners' coordinates, which are pixels of a large picture."""
    angle, size = 3 * uniform(12), 30 + 60 * uniform(12, 2, seed=1)
    centre = 180 + 60 * uniform(12, 1, 2, seed=2)
    corners = torch.tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]) * size[:, None]
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], 1)
    x, y = (corners @ turn + centre).to(dtype).unbind(-1)
    crossed = x * y.roll(-1, 1) - y * x.roll(-1, 1)  # culprit: rotated-boxes
    return crossed.sum(1).abs().float() / 2


def quantised(wide: bool) -> torch.Tensor:
    """Blocks of which some hold little: the scale is subnormal in half, and its reciprocal is Inf."""
    blocks = torch.cat([normal(4, 16), 1e-1 * normal(2, 16, seed=1)]).to(HALF)
    blocks[4:, :2] = 0
    scale = blocks.abs().amax(1, keepdim=True).float() / 57344
    scale = scale if wide else scale.to(HALF)
    codes = blocks.to(scale.dtype) * (1 / scale)  # culprit: reciprocal-scale
    return codes.float() * scale.float()


def flattened(dtype: torch.dtype) -> torch.Tensor:
    """Points divided by their depth, but for those at depth zero, which a mask keeps; their gradient is 0 · Inf in half."""
    points = torch.cat([normal(6, 2), 0.5 + uniform(6, 1, seed=1)], 1)
    points[4:, 2] = 0
    points = points.to(dtype).requires_grad_()
    depth = points[:, 2:]
    seen = depth.abs() > 1e-8
    scale = torch.where(seen, 1.0 / (depth + 1e-8), torch.ones_like(depth))  # culprit: depth-of-zero
    (scale * points[:, :2]).float().square().sum().backward()
    return points.grad.float()


BUGS = (
    Bug("rotated-boxes", "open-mmlab/mmcv#1663", ("overflow", "cancellation"), "aten.mul.Tensor", lambda: turned_areas(HALF),
        lambda: turned_areas(WIDE)),
    Bug("reciprocal-scale", "pytorch/ao#1766", ("underflow", "overflow"), "aten.reciprocal.default", lambda: quantised(False),
        lambda: quantised(True)),
    Bug("depth-of-zero", "kornia/kornia#4274", ("vanished-constant", "overflow", "nan"), "aten.add.Tensor", lambda: flattened(HALF),
        lambda: flattened(WIDE)),
)  # fmt: skip
