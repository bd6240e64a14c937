"""Healthy code that looks like the second batch's faults, frozen before precheck was run on it.

As found, 1 of 11 was accused, and rightly: `seeded_by_the_step` drew its data and the noise of its first step from one seed. The seeds differ now.
"""

from __future__ import annotations

import torch
from blocks_by_hand import hadamard
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from torch import nn
from torch.utils.checkpoint import checkpoint


def scales_in_bfloat16() -> torch.Tensor:
    """int4 in groups, whose scales are bfloat16 from the start."""
    w = channels()
    scale = (w.view(64, 4, 16).abs().amax(-1, keepdim=True) / 7).to(LOW)
    codes = torch.round(w.view(64, 4, 16) / scale.float()).clamp(-8, 7).to(torch.int8)
    return normal(8, 64).to(LOW) @ (codes.to(LOW) * scale).view(64, 64).t()


def greatest_of_what_is_positive() -> torch.Tensor:
    """The greatest number is the greatest magnitude after a ReLU."""
    x = normal(32, 64).relu()
    scale = x.amax(1, keepdim=True).clamp(min=1e-9) / 448
    return ((x / scale).to(E4M3).float() * scale @ normal(64, 16, seed=1)).to(LOW)


def saturated_gradient() -> torch.Tensor:
    """e5m2 under a loss scale: what lies beyond ends at the largest number, which is one element in thousands."""
    g = normal(64, 64) * 1e-3 * 4096
    by = 57344 / (g.abs().amax() / 1.05)
    codes = (g * by).clamp(-57344, 57344).to(E5M2)
    return (codes.float() / by @ normal(64, 16, seed=1) / 4096).to(LOW)


def zero_points_that_are_no_integers() -> torch.Tensor:
    """HQQ: zero points are real numbers, and are taken off before the scale is multiplied by."""
    parts = (channels() + 0.3).view(64, 4, 16)
    low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
    scale = (high - low) / 15
    zero = -low / scale
    codes = torch.round(parts / scale + zero).clamp(0, 15)
    return (normal(8, 64) @ ((codes - zero) * scale).view(64, 64).t()).to(LOW)


def turns_divided_by_at_the_end() -> torch.Tensor:
    """Both operands are turned by a Hadamard matrix of ones, and the product is divided by its size."""
    turn, x, w = hadamard(64) * 8, normal(16, 64), channels()
    x, w = x @ turn, w @ turn
    sx, sw = x.abs().amax(1, keepdim=True) / 448, w.abs().amax(1, keepdim=True) / 448
    y = (x / sx).to(E4M3).float() @ (w / sw).to(E4M3).float().t()
    return torch.softmax(y * (sx * sw.t() / 64), -1).to(LOW)


def seeded_by_the_step() -> torch.Tensor:
    """Rounding by chance from a seed that the step says, so that a run can be repeated."""
    mean, total = normal(64, 64) * 0.1, torch.zeros(64, 64)
    for step in range(16):
        scale = mean.abs().amax(1, keepdim=True) / 7
        drawn = torch.rand(mean.shape, generator=torch.Generator().manual_seed(1000 + step))
        total = total + torch.floor(mean / scale + drawn).clamp(-8, 7) * scale
    return (total / 16).to(LOW)


def subtracted_dither() -> torch.Tensor:
    """Noise is added before rounding to nearest, and the same noise is taken off after it."""
    x = normal(64, 256)
    scale = x.abs().amax(1, keepdim=True) / 7
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) - 0.5
    return ((torch.round(x / scale + noise) - noise) * scale @ normal(256, 8, seed=1)).to(LOW)


def both_with_zero_points() -> torch.Tensor:
    """Inputs and weights with zero points: four terms, of which three are sums of codes and of zero points."""
    x, w = normal(16, 64) + 0.5, channels() + 0.3
    sx, sw = (x.amax() - x.amin()) / 255, (w.amax(1, keepdim=True) - w.amin(1, keepdim=True)) / 255
    zx, zw = torch.round(-x.amin() / sx), torch.round(-w.amin(1, keepdim=True) / sw)
    qx, qw = (torch.round(x / sx) + zx).clamp(0, 255), (torch.round(w / sw) + zw).clamp(0, 255)
    y = qx @ qw.t() - zx * qw.sum(1) - qx.sum(1, keepdim=True) * zw.t() + 64 * zx * zw.t()
    return torch.softmax(y * sx * sw.t() / 8, -1).to(LOW)


def bias_among_the_sums() -> torch.Tensor:
    """A bias in whole numbers is added before the scales are multiplied by, beside the zero point's correction."""
    x, w = normal(16, 64) + 0.5, channels()
    scale, sw = (x.amax() - x.amin()) / 255, w.abs().amax(1, keepdim=True) / 127
    zero, given = torch.round(-x.amin() / scale), torch.round(w / sw)
    codes = (torch.round(x / scale) + zero).clamp(0, 255)
    bias = torch.round(normal(64, seed=3) / (scale * sw.view(-1)))
    return torch.relu((codes @ given.t() - zero * given.sum(1) + bias) * scale * sw.t()).to(LOW)


def dither_of_one_seed() -> torch.Tensor:
    """The same noise for every frame, taken off again after rounding."""
    still, frames = normal(64, 64), []
    for frame in range(8):
        x = still + 0.01 * normal(64, 64, seed=frame)
        scale = x.abs().amax(1, keepdim=True) / 7
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(1000))
        frames.append((torch.floor(x / scale + noise) - (noise - 0.5)) * scale)
    return torch.stack(frames).mean(0).to(LOW)


def recomputed() -> torch.Tensor:
    """Rounding by chance in a checkpoint, which draws the same numbers again in the backward pass."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        scale = x.detach().abs().amax(1, keepdim=True) / 7
        codes = torch.floor(x / scale + torch.rand_like(x))
        return x + (codes * scale - x).detach()

    x = normal(64, 64).requires_grad_()
    torch.manual_seed(1000)
    for _ in range(6):
        checkpoint(rounded, x, use_reentrant=False).square().sum().backward()
    assert x.grad is not None
    return x.grad.to(LOW)


def the_same_numbers_for_both_sides() -> torch.Tensor:
    """A gradient by differences: both evaluations round with the same random numbers, and each step with others."""
    weight = normal(64, 64)
    for step in range(4):
        losses = []
        for sign in (1, -1):
            moved = weight + sign * 1e-3 * normal(64, 64, seed=step + 1)
            scale = moved.abs().amax(1, keepdim=True) / 7
            noise = torch.rand(moved.shape, generator=torch.Generator().manual_seed(1000 + step))
            losses.append((torch.floor(moved / scale + noise) * scale).square().mean())
        weight = weight - 1e-2 * (losses[0] - losses[1]) * normal(64, 64, seed=step + 1)
    return weight.to(LOW)


def keys_by_channel() -> torch.Tensor:
    """KIVI: keys under scales of channels, values under scales of tokens, both with zero points, in two bits."""
    q, k, v = normal(4, 16), normal(32, 16, seed=1) * torch.exp2(normal(1, 16, seed=2)), normal(32, 16, seed=3)

    def kept(x: torch.Tensor, dim: int) -> torch.Tensor:
        low = x.amin(dim, keepdim=True)
        scale = (x.amax(dim, keepdim=True) - low) / 15
        return torch.round((x - low) / scale) * scale + low

    return (torch.softmax(q @ kept(k, 0).t() / 4, -1) @ kept(v, 1)).to(LOW)


def scales_quantised_again() -> torch.Tensor:
    """QLoRA: scales of blocks are kept in eight bits themselves, under a scale and a mean of their own."""
    w = channels()
    scale = w.view(64, 4, 16).abs().amax(-1, keepdim=True) / 7
    mean = scale.mean()
    over = (scale - mean).abs().amax() / 127
    again = torch.round((scale - mean) / over).to(torch.int8).float() * over + mean
    codes = torch.round(w.view(64, 4, 16) / again).clamp(-8, 7)
    return (normal(8, 64) @ (codes * again).view(64, 64).t()).to(LOW)


def factor_folded_into_the_norm() -> torch.Tensor:
    """AWQ: columns of the weight are multiplied by a factor, and the norm's gain before is divided by it."""
    x, w, gain = normal(16, 64), channels(), 1 + 0.2 * normal(64, seed=3)
    factor = torch.exp2(normal(64, seed=4))
    x = nn.functional.layer_norm(x, (64,), gain / factor)
    scaled = w * factor
    sw = scaled.abs().amax(1, keepdim=True) / 7
    return (x @ (torch.round(scaled / sw).clamp(-8, 7) * sw).t()).to(LOW)


def rounded_down_as_the_specification_says() -> torch.Tensor:
    """OCP Microscaling 1.0: the scale is the power of two of the greatest magnitude, over that of the format's largest number."""
    blocks = normal(64, 4, 32) * torch.exp2(normal(64, 4, 1, seed=1))
    scale = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 8)
    codes = (blocks / scale).clamp(-448, 448).to(E4M3)
    return ((codes.float() * scale).reshape(64, 128) @ normal(128, 8, seed=2)).to(LOW)


HEALTHY = (scales_in_bfloat16, greatest_of_what_is_positive, saturated_gradient, zero_points_that_are_no_integers, turns_divided_by_at_the_end,
           seeded_by_the_step, subtracted_dither, keys_by_channel, scales_quantised_again, factor_folded_into_the_norm,
           rounded_down_as_the_specification_says, both_with_zero_points, bias_among_the_sums, dither_of_one_seed, recomputed,
           the_same_numbers_for_both_sides)  # fmt: skip
