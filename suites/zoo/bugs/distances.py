"""Distances, areas and coordinates: of vectors, boxes and pixels."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def neighbours(dtype: torch.dtype) -> torch.Tensor:
    """Squared distances of vectors that nobody normalised, added up 32 lanes at a time in the format that they are stored in."""
    query, base = (9 * normal(1, 512)).to(HALF), (9 * normal(20, 512, seed=1)).to(HALF)
    total = torch.zeros(20, 32, dtype=dtype)
    for start in range(0, 512, 32):
        apart = query[:, start : start + 32].to(dtype) - base[:, start : start + 32].to(dtype)
        total = total + apart * apart  # culprit: half-distances
    return total.sum(-1).float()  # culprit: half-distances


def normalised(dtype: torch.dtype) -> torch.Tensor:
    """A root mean square of rows of 1024 numbers about forty, whose squares are added up in eight lanes of half precision."""
    rows = (40 * normal(6, 1024)).to(HALF)
    lanes = torch.zeros(6, 8, dtype=dtype)
    for part in rows.view(6, 128, 8).unbind(1):
        lanes += part.to(dtype) * part.to(dtype)  # culprit: row-squares
    mean = lanes.sum(-1, keepdim=True).float() / 1024  # culprit: row-squares
    return rows.float() * torch.rsqrt(mean + 1e-6)


def areas(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])  # culprit: enclosing-boxes


def box_loss(dtype: torch.dtype) -> torch.Tensor:
    """The generalised overlap of boxes of pixels, in half as the detector's head gives them: areas beyond 65504."""
    corners = 300 * uniform(10, 2)
    truth = torch.cat([corners, corners + 150 + 260 * uniform(10, 2, seed=1)], -1)
    boxes = (truth + 12 * normal(10, 4, seed=2)).to(dtype).requires_grad_()
    truth = truth.to(dtype)
    shared = (torch.minimum(boxes[:, 2:], truth[:, 2:]) - torch.maximum(boxes[:, :2], truth[:, :2])).clamp(min=0).prod(-1)  # culprit: enclosing-boxes
    around = areas(torch.cat([torch.minimum(boxes[:, :2], truth[:, :2]), torch.maximum(boxes[:, 2:], truth[:, 2:])], -1))
    union = areas(boxes) + areas(truth) - shared
    loss = (1 - shared / (union + 1e-7) + (around - union) / (around + 1e-7)).float().mean()
    loss.backward()
    return boxes.grad.float()


def regions(dtype: torch.dtype) -> torch.Tensor:
    """Where people stand in a picture, as seven numbers: corners, width, height and area, in pixels."""
    corners = 200 * uniform(12, 2)
    sizes = 100 + 350 * uniform(12, 2, seed=1)
    corners, sizes = corners.to(dtype), sizes.to(dtype)
    area = sizes[:, :1] * sizes[:, 1:]  # culprit: region-areas
    features = torch.cat([corners, corners + sizes, sizes, area], -1)
    return functional.layer_norm(features.float(), (7,))


def warped(dtype: torch.dtype, width: int = 2560) -> torch.Tensor:
    """A frame moved by its optical flow, where the coordinates run from -1 to 1 and the picture is 2560 pixels wide."""
    frame = torch.sin(torch.arange(width) * 1.3).expand(1, 1, 4, width) + 0.2 * normal(1, 1, 4, width)
    flow = 3 * torch.tanh(normal(1, 2, 4, width, seed=1)).to(HALF)
    across, down = torch.linspace(-1.0, 1.0, width), torch.linspace(-1.0, 1.0, 4)
    grid = torch.stack([across.expand(4, width), down[:, None].expand(4, width)])[None].to(dtype)  # culprit: warped-frames
    moved = torch.stack([flow[:, 0] / ((width - 1) / 2), flow[:, 1] / 1.5], 1).to(dtype)
    where = (grid + moved).permute(0, 2, 3, 1)  # culprit: warped-frames
    return functional.grid_sample(frame, where.float(), padding_mode="border", align_corners=True)


BUGS = (
    Bug("half-distances", "RedisAI/VectorSimilarity#1021", ("overflow",), "aten.sum.dim_IntList", lambda: neighbours(HALF),
        lambda: neighbours(WIDE)),
    Bug("row-squares", "nntrainer/nntrainer#3935", ("overflow",), "aten.add_.Tensor", lambda: normalised(HALF), lambda: normalised(WIDE)),
    Bug("enclosing-boxes", "facebookresearch/fvcore#114", ("overflow", "nan"), "aten.prod.dim_int", lambda: box_loss(HALF), lambda: box_loss(WIDE)),
    Bug("region-areas", "clairecyq/whos-waldo#3", ("overflow",), "aten.mul.Tensor", lambda: regions(HALF), lambda: regions(WIDE)),
    Bug("warped-frames", "hzwer/ECCV2022-RIFE#188", ("amplified-rounding", "cancellation", "absorption"), "aten.add.Tensor", lambda: warped(HALF),
        lambda: warped(WIDE)),
)  # fmt: skip
