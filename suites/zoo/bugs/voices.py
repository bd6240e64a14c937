"""Signals and series in float32: songs made of sines, filters of a narrow band, tables of products, slopes by differences."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


class SineSource(nn.Module):
    """The excitation of a vocoder: a sine whose frequency follows the pitch."""

    def __init__(self, rate: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.rate, self.dtype = rate, dtype

    def forward(self, pitch: torch.Tensor) -> torch.Tensor:
        radius = pitch.to(self.dtype) / self.rate
        phase = torch.cumsum(radius, -1)  # culprit: whistled-song
        return torch.sin(2 * math.pi * phase).float()  # culprit: whistled-song


def whistled(dtype: torch.dtype) -> torch.Tensor:
    """Ninety seconds of a whistled tune about 1500 Hz, at 6000 samples a second."""
    frames = torch.arange(90 * 60)
    pitch = 1500 * 2 ** (torch.sin(frames * 0.011) / 6 + 0.01 * torch.sin(frames * 0.55))
    return SineSource(6000, dtype)(pitch.repeat_interleave(100))


def low_pass_section(cutoff: float, quality: float) -> tuple[list[float], list[float]]:
    """Forward and backward coefficients of a second-order low-pass filter, by the cookbook."""
    angle = math.pi * cutoff
    alpha, cosine = math.sin(angle) / (2 * quality), math.cos(angle)
    a0 = 1 + alpha
    return [(1 - cosine) / 2 / a0, (1 - cosine) / a0, (1 - cosine) / 2 / a0], [1.0, -2 * cosine / a0, (1 - alpha) / a0]


def product(one: list[float], other: list[float]) -> list[float]:
    out = [0.0] * (len(one) + len(other) - 1)
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            out[i + j] += left * right
    return out


class IIRFilter:
    """A recursive filter of any order; its coefficients are what the page's script hands over."""

    def __init__(self, forward: list[float], backward: list[float], dtype: torch.dtype) -> None:
        self.forward = torch.tensor(forward, dtype=dtype)  # culprit: cascaded-filter
        self.backward = torch.tensor(backward, dtype=dtype)  # culprit: cascaded-filter

    def __call__(self, signal: torch.Tensor) -> torch.Tensor:
        order = len(self.forward) - 1
        heard, made = signal.to(self.forward.dtype), [self.forward.new_zeros(())] * order
        padded = torch.cat([heard.new_zeros(order), heard])
        for now in range(len(signal)):
            ahead = (self.forward * padded[now : now + order + 1].flip(0)).sum()  # culprit: cascaded-filter
            back = (self.backward[1:] * torch.stack(made[-1 : -order - 1 : -1])).sum()  # culprit: cascaded-filter
            made.append(ahead - back)  # culprit: cascaded-filter
        return torch.stack(made[order:]).float()


def filtered(dtype: torch.dtype) -> torch.Tensor:
    """Two low-pass filters at a hundredth of the band, multiplied out to one of fourth order, which hears a hum."""
    (b1, a1), (b2, a2) = low_pass_section(0.012, 0.54), low_pass_section(0.012, 1.31)
    signal = 0.3 * torch.sin(torch.arange(500) * 0.02) + 0.1 * normal(500)
    return IIRFilter(product(b1, b2), product(a1, a2), dtype)(signal)


def static_covariates(stores: torch.Tensor, products: torch.Tensor, prices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One table of what does not change in a series: store, product and price."""
    table = torch.stack([stores.double(), products.double(), prices.double()], 1)
    return table.to(dtype)  # culprit: products-of-stores


def sold(dtype: torch.dtype) -> torch.Tensor:
    """Mean sales of each product over the stores that sell it; a product's number has nine digits."""
    catalogue = 100_100_037 + torch.arange(12) * 3
    which = torch.arange(240) * 7 % 12
    table = static_covariates(torch.arange(240) % 20, catalogue[which], 3 + 9 * uniform(240), dtype)
    sales = 20 + 8 * which + normal(240, seed=1)
    row = torch.searchsorted(catalogue, table[:, 1].long()).clamp_max(11)
    total = torch.zeros(12).index_add_(0, row, sales)
    return total / torch.zeros(12).index_add_(0, row, torch.ones(240)).clamp_min(1)


class CentralDifference:
    """A slope by two values, whose distance weighs rounding against curvature."""

    def __init__(self, eps: float) -> None:
        self.width = (3 * eps) ** (1 / 3)  # culprit: slope-in-single

    def __call__(self, function: nn.Module, x: torch.Tensor) -> torch.Tensor:
        ahead, behind = x + self.width, x - self.width  # culprit: slope-in-single
        return (function(ahead) - function(behind)) / (2 * self.width)  # culprit: slope-in-single


def residual(eps: float) -> torch.Tensor:
    """What a network for u' = -u leaves of the equation at 60 points."""
    network = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
    with torch.no_grad():
        for layer, scale, seed in ((network[0], 0.8, 1), (network[2], 0.5, 2)):
            layer.weight.copy_(scale * normal(*layer.weight.shape, seed=seed))
            layer.bias.copy_(scale * normal(*layer.bias.shape, seed=seed + 2) + scale)
        x = torch.linspace(0.5, 4, 60)[:, None]
        return CentralDifference(eps)(network, x) + network(x)


BUGS = (
    Bug("whistled-song", "chomeyama/SiFiGAN#13", ("amplified-rounding", "accumulated-drift", "absorption"), "aten.mul.Tensor",
        lambda: whistled(WIDE), lambda: whistled(DOUBLE), module="SineSource", precision="32-true"),
    Bug("cascaded-filter", "WebAudio/web-audio-api#631", ("amplified-rounding", "accumulated-drift", "cancellation", "absorption"),
        "aten.sum.default", lambda: filtered(WIDE), lambda: filtered(DOUBLE), precision="32-true"),
    Bug("products-of-stores", "unit8co/darts#2277", ("integer-rounding",), "aten._to_copy.default", lambda: sold(WIDE), lambda: sold(DOUBLE),
        precision="32-true"),
    Bug("slope-in-single", "JuliaDiff/FiniteDifferences.jl#98", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: residual(torch.finfo(DOUBLE).eps), lambda: residual(torch.finfo(WIDE).eps), phase="data", precision="32-true"),
)  # fmt: skip
