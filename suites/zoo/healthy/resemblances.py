"""Attention, norms, formats and geometry that look like the bugs of passages."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def orthogonal_update() -> torch.Tensor:
    """Newton and Schulz in bfloat16 on a gradient in float32; the update is cast back to float32, where momentum and weight are."""
    weight, momentum = normal(8, 16), torch.zeros(8, 16)
    for seed in (1, 2):
        gradient = normal(8, 16, seed=seed)
        momentum.lerp_(gradient, 0.05)
        x = gradient.lerp(momentum, 0.95).bfloat16()
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        weight = weight - 0.02 * x.float()
    return weight


def scaled_before_the_product() -> torch.Tensor:
    """Queries and keys whose products would pass 65504 in half are both divided by the fourth root of 64 first."""
    q, k, v = (scale * normal(2, 12, 64, seed=seed) for scale, seed in ((38.0, 0), (38.0, 1), (1.0, 2)))
    q, k, v = (q / 64**0.25).half(), (k / 64**0.25).half(), v.half()
    return torch.softmax((q @ k.transpose(1, 2)).float(), -1).half() @ v


def near_positions() -> torch.Tensor:
    """A bias by distance in half: a quarter a token, counted back from the query and capped at 128, all of it exact."""
    q, k, v = (normal(2, 96, 16, seed=seed).half() for seed in range(3))
    distance = (torch.arange(96) - torch.arange(96)[:, None]).clamp(-128, 0)
    bias = (0.25 * distance).half().masked_fill(torch.ones(96, 96).triu(1).bool(), float("-inf"))
    return torch.softmax((q @ k.transpose(1, 2) / 4 + bias).float(), -1).half() @ v


def round_splats() -> torch.Tensor:
    """Covariances of splats that are nearly as thick as they are long, in half, projected onto a screen in float32."""
    turn, scales = torch.linalg.qr(normal(40, 3, 3)).Q, 0.3 + 0.2 * uniform(40, 3)
    covariance = (turn @ torch.diag_embed(scales**2) @ turn.transpose(1, 2)).half()
    view = torch.linalg.qr(normal(3, 2, seed=1)).Q.T
    return (250.0**2 * (view @ covariance.float() @ view.T) + 0.3 * torch.eye(2)).diagonal(dim1=1, dim2=2).sqrt()


def values_one_by_one() -> torch.Tensor:
    """Attention over 60 cached values in bfloat16, a value at a time, added up in float32 and stored in bfloat16 at the end."""
    shares, values = torch.softmax(0.3 * normal(4, 60), -1).to(LOW), (0.8 + 0.3 * normal(60, 16, seed=1)).to(LOW)
    out = torch.zeros(4, 16)
    for place in range(60):
        out += shares[:, place, None].float() * values[place].float()
    return out.to(LOW)


def masked_by_the_least_number() -> torch.Tensor:
    """Padding masked by the least finite number of half, for a softmax at once."""
    logits, mask = normal(3, 20).half(), torch.arange(20) < torch.tensor([[20], [12], [7]])
    return torch.softmax(logits.masked_fill(~mask, torch.finfo(HALF).min), -1)


def norms_of_examples() -> torch.Tensor:
    """Norms of single examples' gradients under autocast, by products of what a hook kept in bfloat16, widened before."""
    layer, x, kept = nn.Linear(12, 6, bias=False), normal(4, 5, 12, seed=1), []
    with torch.no_grad():
        layer.weight.copy_(0.3 * normal(6, 12))
    with torch.autocast("cpu", dtype=LOW):
        out = layer(x)
        out.register_hook(lambda gradient: kept.append(gradient.detach().float()))
        loss = functional.mse_loss(out.float(), torch.zeros(4, 5, 6))
    loss.backward()
    gradients = kept[0].transpose(1, 2) @ x
    return gradients.flatten(1).norm(dim=1)


IDIOMS = (orthogonal_update, scaled_before_the_product, near_positions, round_splats, values_one_by_one, masked_by_the_least_number,
          norms_of_examples)  # fmt: skip
