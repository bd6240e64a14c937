"""Views that are contrasted, and series and sounds that are foretold: temperatures, statistics, spectra and clocks in float32."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net
from healthy.guilds import trained

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def prototypes_in_equal_parts() -> torch.Tensor:
    """SwAV: assignments by three rounds of Sinkhorn over logarithms in float32."""

    def loss(out: torch.Tensor) -> torch.Tensor:
        scores = out.float()
        with torch.no_grad():
            plan = scores / 0.5
            for _ in range(3):
                plan = plan - torch.logsumexp(plan, 0, keepdim=True)
                plan = plan - torch.logsumexp(plan, 1, keepdim=True)
            shares = plan.exp()
        swapped = torch.cat([shares[16:], shares[:16]])
        return -(swapped * torch.log_softmax(scores / 0.5, 1)).sum(1).mean()

    x = normal(16, 12)
    return trained(net(12, 32, 6), (torch.cat([x, x + 0.1 * normal(16, 12, seed=1)]),), loss, "16-mixed")


def views_of_unlike_columns() -> torch.Tensor:
    """VICReg: spreads about their means and covariances of centred columns, all in float32."""

    def loss(out: torch.Tensor) -> torch.Tensor:
        both = out.float().unflatten(0, (2, 24))
        centred = both - both.mean(1, keepdim=True)
        spread = (centred.square().mean(1) + 1e-4).sqrt()
        shared = centred.mT @ centred / 23
        apart = shared.masked_fill(torch.eye(8, dtype=torch.bool), 0)
        return 25 * (both[0] - both[1]).square().mean() + 25 * torch.relu(1 - spread).mean() + apart.square().sum((1, 2)).mean() / 8

    x = normal(24, 12)
    return trained(net(12, 32, 8), (torch.cat([x, x + 0.2 * normal(24, 12, seed=1)]),), loss, "bf16-mixed")


def voice_at_three_resolutions() -> torch.Tensor:
    """Spectral convergence and log-magnitudes at three resolutions: the signal is widened before its Fourier transforms."""
    time = torch.arange(256) / 256
    wanted = torch.stack([torch.sin(2 * math.pi * pitch * time) for pitch in (5, 9, 17)]) + 0.05 * normal(3, 256)

    def loss(out: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for size in (16, 32, 64):
            window = torch.hann_window(size)
            mine, theirs = (torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp_min(1e-3) for x in (out.float(), wanted))
            total = total + (mine - theirs).norm() / theirs.norm() + (mine.log() - theirs.log()).abs().mean()
        return total / 3

    return trained(net(24, 64, 256), (normal(3, 24),), loss, "16-mixed")


def quantiles_in_order() -> torch.Tensor:
    """Five quantiles by positive steps, and their pinball losses, in float32."""
    levels, sales = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]), normal(40, 1, seed=2)

    def loss(out: torch.Tensor) -> torch.Tensor:
        first, steps = out.float().split([1, 4], 1)
        quantiles = torch.cat([first, first + functional.softplus(steps).cumsum(1)], 1)
        return torch.maximum(levels * (sales - quantiles), (levels - 1) * (sales - quantiles)).mean()

    return trained(net(8, 24, 5), (normal(40, 8),), loss, "bf16-mixed")


class Levelled(nn.Module):
    """A forecaster that takes off a window's level and spread in float32, and gives them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain, self.shift = net(16, 32, 4), nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level, spread = x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        return (self.inner((x - level) / spread).float() * (1 + self.gain) + self.shift) * spread + level


def series_less_their_level() -> torch.Tensor:
    """Prices near four thousand, which are scaled before the network under autocast and after it; the loss is in units of each series."""
    series = 4000 * (1 + 0.3 * uniform(20, 1)) + (30 * normal(20, 20, seed=1)).cumsum(1)
    spread = series.std(1, keepdim=True)
    return trained(Levelled(), (series[:, :16],), lambda out: ((out - series[:, 16:]) / spread).square().mean(), "bf16-mixed")


def seasons_that_multiply() -> torch.Tensor:
    """Exponential smoothing with a season, learnt by gradients in float32: weights by sigmoids, levels by convex steps."""
    series = (1 + 0.02 * torch.arange(48.0)) * (1 + 0.3 * torch.sin(2 * math.pi * torch.arange(48) / 12)) * (1 + 0.02 * normal(48))
    weights = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([weights], 0.1)
    for _ in range(3):
        quick, turning = torch.sigmoid(weights)
        level, season, away = series[0], list(torch.ones(12)), []
        for step in range(1, 48):
            told = level * season[step % 12]
            away.append((series[step] - told) / series[step])
            before, level = level, quick * series[step] / season[step % 12] + (1 - quick) * level
            season[step % 12] = turning * series[step] / (0.5 * (before + level)) + (1 - turning) * season[step % 12]
        loss = torch.stack(away).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights.detach()


IDIOMS = (
    prototypes_in_equal_parts, views_of_unlike_columns, voice_at_three_resolutions, quantiles_in_order, series_less_their_level,
    seasons_that_multiply,
)  # fmt: skip
EXACT = ("seasons_that_multiply",)
