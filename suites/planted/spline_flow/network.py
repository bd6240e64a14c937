"""A normalising flow of rational-quadratic splines over small pictures, with a mixture as its base, and samples by its inverse."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, PIXELS, WIDTH, BINS, LAYERS, PARTS = 96, 12, 64, 16, 4, 5
HALF, BOUND, EDGE, LEAST = PIXELS // 2, 6.0, 1e-5, 1e-3


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def dequantised(pixels: torch.Tensor, noise: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Pixels of 8 bits, spread over the step to the next one."""
    return (pixels + noise.float()) / 256


def opened(share: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """From zero to one onto all numbers, with the logarithm of the slope."""
    share = EDGE + (1 - 2 * EDGE) * share
    left, right = torch.log(share), torch.log(1 - share)
    return left - right, -(left + right).sum(-1)


def standardised(context: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Temperatures in kelvin, as what the network reads."""
    return (context.float() - 288.15) / 6


def knots(raw: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Left edges and widths of bins that fill the whole range."""
    share = LEAST + (1 - LEAST * BINS) * torch.softmax(raw.float(), -1)
    edges = 2 * BOUND * functional.pad(torch.cumsum(share, -1), (1, 0)) - BOUND
    return edges[..., :-1], edges[..., 1:] - edges[..., :-1]


def slopes(raw: torch.Tensor) -> torch.Tensor:
    return functional.pad(LEAST + functional.softplus(raw.float()), (1, 1), value=1.0)


def bin_of(x: torch.Tensor, left: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """In which bin each number is."""
    return ((x.unsqueeze(-1) >= left).sum(-1) - 1).clamp(0, BINS - 1)


def root(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The share of the bin at which the spline has a height."""
    under = (b.square() - 4 * a * c).clamp(min=0)
    return (2 * c / (-b - torch.sqrt(under))).clamp(0, 1)


def spline(x: torch.Tensor, raw: torch.Tensor, low: torch.dtype, *, back: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A monotone map of [-6, 6] onto itself, and the logarithm of its slope; the identity outside."""
    left, width = knots(raw[..., :BINS], low)
    bottom, height = knots(raw[..., BINS : 2 * BINS], low)
    slope = slopes(raw[..., 2 * BINS :])
    inside = (x > -BOUND) & (x < BOUND)
    within = x.clamp(-BOUND, BOUND)
    index = bin_of(within, bottom if back else left, low).unsqueeze(-1)
    left, width, bottom, height = (each.gather(-1, index).squeeze(-1) for each in (left, width, bottom, height))
    before, after = slope[..., :-1].gather(-1, index).squeeze(-1), slope[..., 1:].gather(-1, index).squeeze(-1)
    steep = height / width
    bend = before + after - 2 * steep
    if back:
        rise = within - bottom
        share = root(height * (steep - before) + rise * bend, height * before - rise * bend, -steep * rise, low)
        result = left + share * width
    else:
        share = ((within - left) / width).clamp(0, 1)
        result = bottom + height * (steep * share.square() + before * share * (1 - share)) / (steep + bend * share * (1 - share))
    bottomed = steep + bend * share * (1 - share)
    top = after * share.square() + 2 * steep * share * (1 - share) + before * (1 - share).square()
    log_slope = torch.log(steep.square() * top) - 2 * torch.log(bottomed)
    return torch.where(inside, result, x), torch.where(inside, -log_slope if back else log_slope, 0.0).sum(-1)


def mixture(z: torch.Tensor, means: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of the density of some Gaussians of width a half."""
    logs = -2 * (z.unsqueeze(1) - means.float()).square().sum(-1) - PIXELS * math.log(0.5 * math.sqrt(2 * math.pi)) - math.log(PARTS)
    return torch.logsumexp(logs, -1)


def bits(base: torch.Tensor, slope: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Bits of a pixel beyond what a uniform guess costs."""
    return -(base + slope) / (PIXELS * math.log(2))


class Coupling(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.net = nn.Sequential(nn.Linear(HALF + 3, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, HALF * (3 * BINS - 1)))

    def forward(self, x: torch.Tensor, context: torch.Tensor, low: torch.dtype, *, back: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        kept, moved = x.chunk(2, -1) if self.turned else x.chunk(2, -1)[::-1]
        raw = 2 * self.net(torch.cat([kept / 3, context], -1).to(self.net[0].weight.dtype)).unflatten(-1, (HALF, -1))
        with torch.autocast(x.device.type, enabled=False):
            moved, slope = spline(moved, raw, low, back=back)
        return torch.cat((kept, moved) if self.turned else (moved, kept), -1), slope


class SplineFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(turn % 2)) for turn in range(LAYERS))
        self.means = nn.Parameter(1.5 * torch.randn(PARTS, PIXELS))

    def forward(self, pixels: torch.Tensor, noise: torch.Tensor, context: torch.Tensor, seeds: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.means)
        with torch.autocast(noise.device.type, enabled=False):
            share = dequantised(pixels, noise, low)
            x, slope = opened(share, low)
            weather = standardised(context, low)
        for layer in self.layers:
            x, each = layer(x, weather, low)
            slope = slope + each
        with torch.autocast(noise.device.type, enabled=False):
            cost = bits(mixture(x, self.means, low), slope, low)
        made = seeds.float()
        for layer in reversed(self.layers):
            made, _ = layer(made, weather, low, back=True)
        return {"bits": cost, "latent": x, "samples": torch.sigmoid(made)}


def make() -> nn.Module:
    torch.manual_seed(0)
    return SplineFlow()


def batch() -> dict[str, torch.Tensor]:
    """Pictures with bright and dark pixels; the context is three temperatures."""
    generator = torch.Generator().manual_seed(8)
    pixels = (128 + 90 * torch.randn(ROWS, PIXELS, generator=generator)).round().long().clamp(0, 255)
    return {
        "pixels": pixels,
        "noise": torch.rand(ROWS, PIXELS, generator=generator),
        "context": 288.15 + 6 * torch.randn(ROWS, 3, generator=generator),
        "seeds": torch.randn(ROWS, PIXELS, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["bits"].mean() + 0.1 * output["samples"].mean()


optimizer = None
