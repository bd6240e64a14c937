"""A normalising flow of 8-bit images: the logit of the pixels, actnorm, affine couplings, an invertible linear layer and a spline coupling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

SIZE, HIDDEN, BINS, BOUND = 256, 64, 32, 6.0
STEPS = 1
optimizer = None


def as_logits(pixels: torch.Tensor, noise: torch.Tensor, alpha: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """The logit of dequantised pixels, and the logarithm of the determinant of the map."""
    x = (pixels.float() + noise.float()) / 256
    x = x.clamp(alpha, 1 - alpha)
    return torch.log(x) - torch.log(1 - x), -(torch.log(x) + torch.log(1 - x)).sum(-1)


def normalised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every dimension with the mean and the spread of the batch taken off, as batch normalisation between the layers of a flow does."""
    x = x.float()
    mean = x.mean(0)
    variance = (x - mean).square().mean(0) + 1e-5
    return (x - mean) * torch.rsqrt(variance), -0.5 * torch.log(variance).sum()


def affine(x: torch.Tensor, log_scale: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_scale = 2 * torch.tanh(log_scale.float())
    return x * torch.exp(log_scale) + shift.float(), log_scale.sum(-1)


def mixed(x: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, diagonal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An invertible linear map, as its LU decomposition."""
    unit = torch.eye(SIZE, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        matrix = (lower.float().tril(-1) + unit) @ (upper.float().triu(1) + torch.diag(diagonal.float()))
        return x @ matrix.T, torch.log(diagonal.float().abs()).sum()


def knots(unnormalised: torch.Tensor, least: float = 1e-3) -> torch.Tensor:
    """The ends of the bins of a spline, from -BOUND to BOUND."""
    shares = least + (1 - least * BINS) * F.softmax(unnormalised.float(), dim=-1)
    return F.pad(2 * BOUND * torch.cumsum(shares, dim=-1), (1, 0)) - BOUND


def spline(x: torch.Tensor, widths: torch.Tensor, heights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A monotone map made of lines between knots; the identity outside of them."""
    left, down = knots(widths), knots(heights)
    index = torch.searchsorted(left, x.clamp(-BOUND, BOUND)[..., None].to(left.dtype)).clamp(1, BINS)
    x0, x1, y0, y1 = (edge.gather(-1, place)[..., 0] for edge in (left, down) for place in (index - 1, index))
    slope = slopes(x0, x1, y0, y1)
    inside = x.abs() < BOUND
    return torch.where(inside, y0 + (x - x0) * slope, x), torch.where(inside, torch.log(slope), 0.0).sum(-1)


def slopes(x0: torch.Tensor, x1: torch.Tensor, y0: torch.Tensor, y1: torch.Tensor) -> torch.Tensor:
    return (y1 - y0).float() / (x1 - x0).float()


def log_density(z: torch.Tensor, log_determinant: torch.Tensor) -> torch.Tensor:
    return (-0.5 * (z.float().square() + math.log(2 * math.pi))).sum(-1) + log_determinant.float()


class Coupling(nn.Module):
    """Half of the dimensions say how the other half is transformed."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SIZE // 2, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, outputs * SIZE // 2))
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.to(self.net[0].weight.dtype)).view(len(x), SIZE // 2, self.outputs)


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Parameter(0.02 * torch.randn(SIZE, SIZE)), nn.Parameter(0.02 * torch.randn(SIZE, SIZE))
        self.diagonal = nn.Parameter(torch.linspace(0.5, 1.2, SIZE))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return mixed(x, self.lower, self.upper, self.diagonal)


class Flow(nn.Module):
    """Returns the logarithm of the density of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.spline = Coupling(2), Coupling(2), Coupling(2 * BINS)
        self.mix = Mix()

    def forward(self, pixels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x, log_determinant = as_logits(pixels, noise)
        x, change = normalised(x)
        log_determinant = log_determinant + change
        for coupling in (self.first, self.second):
            kept, moved = x.chunk(2, dim=-1)
            parameters = coupling(kept)
            moved, change = affine(moved, *parameters.unbind(-1))
            x, log_determinant = torch.cat([moved, kept], dim=-1), log_determinant + change
        x, change = self.mix(x)
        log_determinant = log_determinant + change
        kept, moved = x.chunk(2, dim=-1)
        parameters = self.spline(kept)
        moved, change = spline(moved, *parameters.chunk(2, dim=-1))
        return log_density(torch.cat([kept, moved], dim=-1), log_determinant + change)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Flow()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a light ground, as of written pages: many pixels are white."""
    g = torch.Generator().manual_seed(1)
    ground = torch.linspace(200, 250, SIZE)
    pixels = (ground + 12 * torch.randn(24, SIZE, generator=g)).round().clamp(0, 255).long()
    return pixels, torch.rand(24, SIZE, generator=g)


def loss(output: torch.Tensor) -> torch.Tensor:
    """Bits per dimension."""
    return -output.mean() / (SIZE * math.log(2)) + 8
