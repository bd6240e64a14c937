"""Healthy code that quantises in ways of its own: scales that are folded, learned, kept or meant to stay, and rounding that is no quantiser."""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, LOW, normal
from torch import nn


def attention_with_folded_scales() -> torch.Tensor:
    """fp8 scores times one number: both scales and 1/√d."""
    q, k, v = (normal(16, 64, seed=seed).to(LOW) for seed in range(3))
    sq, sk = (each.float().abs().amax() / 448 for each in (q, k))
    scores = (q.float() / sq).to(E4M3).float() @ (k.float() / sk).to(E4M3).float().t() * (sq * sk / 8.0)
    return torch.softmax(scores, -1).to(LOW) @ v


def outliers_apart() -> torch.Tensor:
    """LLM.int8(): columns with large numbers in float, the others in int8."""
    x, w = normal(16, 64) * torch.where(torch.arange(64) % 31 == 3, 30.0, 1.0), normal(32, 64, seed=1)
    large = x.abs().amax(0) > 6
    rest, kept = x * ~large, x[:, large]
    sx, sw = rest.abs().amax(1, keepdim=True) / 127, w.abs().amax(1, keepdim=True) / 127
    codes = torch.round(rest / sx) @ torch.round(w / sw).t()
    return (codes * sx * sw.t() + kept @ w[:, large].t()).to(LOW)


def gain_folded_into_the_scale() -> torch.Tensor:
    """A norm's gain times the scale of what follows: the result is the gain's on purpose."""
    w, gain = normal(32, 64), 1 + 0.3 * normal(32, 1, seed=2)
    scale = w.abs().amax(1, keepdim=True) / 448
    codes = (w / scale).to(E4M3)
    return (normal(8, 64, seed=1) @ (codes.float() * (scale * gain)).t()).to(LOW)


def learned_step() -> torch.Tensor:
    """LSQ: the step is a parameter, and gradients pass straight through."""
    w, step = nn.Parameter(normal(32, 64) / 8), nn.Parameter(torch.full((32, 1), 0.05))
    scaled = w / step
    codes = scaled + (scaled.clamp(-8, 7).round() - scaled).detach()
    out = (normal(8, 64, seed=1) @ (codes * step).t()).to(LOW)
    out.float().square().mean().backward()
    assert w.grad is not None
    return torch.cat([out.float().flatten(), w.grad.flatten()])


def ternary() -> torch.Tensor:
    """BitNet b1.58: weights to -1, 0, 1 by their mean magnitude, inputs to int8 by tokens."""
    w, x = normal(32, 64) / 8, normal(8, 64, seed=1)
    gamma = w.abs().mean().clamp(min=1e-5)
    codes = (w / gamma).round().clamp(-1, 1)
    sx = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return ((x * sx).round().clamp(-128, 127) @ codes.t() * gamma / sx).to(LOW)


def pixels() -> torch.Tensor:
    """Pictures to bytes, and back by mean and deviation of the data set."""
    picture = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    bytes_ = (picture * torch.tensor([255.0, 255.0, 255.0]).view(3, 1, 1)).round().to(torch.uint8)
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in ([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]))
    return nn.functional.conv2d((bytes_.float() - mean) / deviation, normal(4, 3, 3, 3)).relu().to(LOW)


def finite_scalar_quantisation() -> torch.Tensor:
    """FSQ: codes are what the decoder reads, over half their range."""
    z, levels = normal(16, 4), torch.tensor([8.0, 8.0, 5.0, 5.0])
    half = (levels - 1) / 2
    codes = torch.round(torch.tanh(z) * half)
    return nn.functional.gelu((codes / half) @ normal(4, 16, seed=1)).to(LOW)


def buckets() -> torch.Tensor:
    """Relative positions in buckets: whole numbers that are made of scaled ones and index a table."""
    distance = (torch.arange(16)[:, None] - torch.arange(16)).abs().float()
    place = (torch.log1p(distance) * torch.tensor([2.5])).floor().long().clamp(max=7)
    return normal(8, 4)[place].to(LOW).sum(0)


def compressed_gradient() -> torch.Tensor:
    """int8 gradients with error feedback: what rounding has lost is added the next time."""
    kept, total = torch.zeros(256), torch.zeros(256)
    for step in range(4):
        gradient = normal(256, seed=step) + kept
        scale = gradient.abs().amax() / 127
        sent = torch.round(gradient / scale).to(torch.int8).float() * scale
        kept = gradient - sent
        total = total + sent
    return total.to(LOW)


def eight_bit_moments() -> torch.Tensor:
    """Adam's second moment in blocks of bytes, as a square root."""
    moment, weight = torch.zeros(4, 64, dtype=torch.uint8), torch.ones(256)
    scale = torch.full((4, 1), 1e-8)
    for step in range(4):
        gradient = normal(256, seed=step)
        second = 0.9 * (moment.float() / 255 * scale).square().view(-1) + 0.1 * gradient.square()
        root = second.sqrt().view(4, 64)
        scale = root.amax(1, keepdim=True).clamp(min=1e-12)
        moment = (root / scale * 255).round().to(torch.uint8)
        weight = weight - 0.01 * gradient / (second.sqrt() + 1e-8)
    return weight.to(LOW)


def by_chance() -> torch.Tensor:
    """Rounded by chance under a scale: the floor of what uniform noise was added to."""
    g = normal(64, 256)
    scale = g.abs().amax(1, keepdim=True) / 7
    codes = torch.floor(g / scale + torch.rand(g.shape, generator=torch.Generator().manual_seed(5))).clamp(-8, 7)
    return ((codes * scale) @ normal(256, 8, seed=2)).to(LOW)


def percentile_clipped() -> torch.Tensor:
    """A scale from the 99.9th percentile: few elements are clipped, and rounding gains by it."""
    x = normal(64, 256)
    scale = torch.quantile(x.abs().flatten(), 0.999) / 7
    codes = torch.round(x / scale).clamp(-8, 7)
    return (codes * scale @ normal(256, 8, seed=1)).to(LOW)


def turned_outside() -> torch.Tensor:
    """QuaRot: inputs are turned here, weights have been before."""
    turn = torch.ones(1, 1)
    while len(turn) < 64:
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)]) / 2**0.5
    x = normal(16, 64) @ turn
    weight = normal(32, 64, seed=1)  # turned when it was stored
    scale = x.abs().amax(1, keepdim=True) / 7
    return ((torch.round(x / scale) @ weight.t()) * scale).to(LOW)


def normalised_first() -> torch.Tensor:
    """Rows brought to length one, quantised, and dequantised to that."""
    x = normal(32, 64) * torch.exp2(normal(32, 1, seed=1))
    unit = x / x.norm(dim=1, keepdim=True)
    scale = unit.abs().amax() / 127
    codes = torch.round(unit / scale).to(torch.int8)
    return torch.softmax((codes.float() * scale) @ normal(64, 8, seed=2), -1).to(LOW)


def peaks_normalised_first() -> torch.Tensor:
    """Rows over their greatest magnitude, which stays, then under a scale, which goes."""
    x = normal(32, 64) * torch.exp2(normal(32, 1, seed=1))
    loud = x / x.abs().amax(1, keepdim=True)
    scale = loud.abs().amax() / 448
    return torch.tanh((loud / scale).to(E4M3).float() * scale @ normal(64, 8, seed=2)).to(LOW)


def affine_products() -> torch.Tensor:
    """Zero points taken out after the product, by sums of rows."""
    x, w = normal(16, 64) + 0.5, normal(32, 64, seed=1)
    low, high = x.amin(), x.amax()
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    codes = (torch.round(x / scale) + zero).clamp(0, 255)
    sw = w.abs().amax(1, keepdim=True) / 127
    given = torch.round(w / sw)
    return ((codes @ given.t() - zero * given.sum(1)) * scale * sw.t()).to(LOW)


def residual_stages() -> torch.Tensor:
    """Two stages: the second quantises what the first has left."""
    x = normal(64, 64)
    coarse = x.abs().amax(1, keepdim=True) / 7
    first = torch.round(x / coarse) * coarse
    fine = (x - first).abs().amax(1, keepdim=True) / 7
    second = torch.round((x - first) / fine) * fine
    return ((first + second) @ normal(64, 8, seed=1)).to(LOW)


HEALTHY = (attention_with_folded_scales, outliers_apart, gain_folded_into_the_scale, learned_step, ternary, pixels, finite_scalar_quantisation,
           buckets, compressed_gradient, eight_bit_moments, by_chance, percentile_clipped, turned_outside, normalised_first, peaks_normalised_first,
           affine_products, residual_stages)  # fmt: skip
