"""Variances, clipped gradients, moments, tables and boxes that look like the bugs of `normalisers`, `clippings` and `corners`."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def padded_rows() -> torch.Tensor:
    """Layer norm in half of rows of which two are constant: its epsilon is 1e-5."""
    x = normal(6, 32).to(HALF)
    x[4:] = 0.25
    return functional.layer_norm(x, (32,))


def centred_variance() -> torch.Tensor:
    """A batch norm in bfloat16 of channels about five, by torch."""
    x = (5 + normal(16, 4, 64)).to(LOW)
    return functional.batch_norm(x, None, None, training=True)


def kept_in_float32() -> torch.Tensor:
    """The gradient of a layer norm of values about forty in half, by torch, which keeps its mean in float32."""
    x = (40 + normal(8, 64)).to(HALF).requires_grad_()
    (functional.layer_norm(x, (64,)).float() * normal(8, 64, seed=1)).sum().backward()
    return x.grad


def norm_of_shards() -> torch.Tensor:
    """Norms of four shards of gradients in bfloat16, squared and summed in float32; their share is a number of one."""
    shards = [(20 * normal(256, seed=seed)).to(LOW) for seed in range(4)]
    total = torch.stack([shard.float().norm() for shard in shards]).norm()
    return torch.cat([(shard * (1.0 / (total + 1e-6)).to(LOW)).float() for shard in shards])


def clipped_by_value() -> torch.Tensor:
    """Gradients of three hundred in half, cut at one, each by itself."""
    return (300 + 30 * normal(16)).to(HALF).clamp(-1, 1).float()


def moments_in_float32() -> torch.Tensor:
    """AdamW on bfloat16 weights by way of float32 copies, with the usual averages."""
    weight = nn.Parameter(normal(32).to(LOW))
    wide = nn.Parameter(weight.detach().float())
    optimizer = torch.optim.AdamW([wide], lr=0.01)
    for step in range(6):
        wide.grad = (weight.detach() - 1 + 0.1 * normal(32, seed=step)).float()
        optimizer.step()
        weight.data.copy_(wide.data)
    return weight.detach()


def loaded_weights() -> torch.Tensor:
    """A checkpoint of float32 that is loaded into a layer of bfloat16: each weight is rounded once, as the format means."""
    layer = nn.Linear(24, 8).to(LOW)
    layer.load_state_dict({"weight": normal(8, 24) / 5, "bias": 0.1 * normal(8, seed=1)})
    return layer(normal(16, 24, seed=2).to(LOW))


def upright_boxes() -> torch.Tensor:
    """Areas of upright boxes in half, whose sides are differences of neighbouring pixels and whose coordinates are exact."""
    corner, size = (400 * uniform(12, 2)).round().to(HALF), (20 + 60 * uniform(12, 2, seed=1)).round().to(HALF)
    sides = (corner + size) - corner
    return (sides[:, 0] * sides[:, 1]).float()


def scales_that_half_holds() -> torch.Tensor:
    """Blocks divided by their largest over 127, in half: scales of a thousandth, whose reciprocals are numbers."""
    blocks = normal(6, 64).to(HALF)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    return (blocks / scale).round() * scale


def points_in_front() -> torch.Tensor:
    """Points divided by a depth in half that is at least a half, and the gradient of that."""
    points = torch.cat([normal(6, 2), 0.5 + uniform(6, 1, seed=1)], 1).to(HALF).requires_grad_()
    (points[:, :2] / (points[:, 2:] + 1e-3)).float().square().sum().backward()
    return points.grad


IDIOMS = (padded_rows, centred_variance, kept_in_float32, norm_of_shards, clipped_by_value, moments_in_float32, loaded_weights, upright_boxes,
          scales_that_half_holds, points_in_front)  # fmt: skip
