"""Views that are contrasted, and series and sounds that are foretold: temperatures, statistics, spectra and clocks in float32."""

from __future__ import annotations

import copy
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def views_beside_a_queue() -> torch.Tensor:
    """MoCo: a key encoder that is averaged in float32, unit vectors in float32, and a queue of keys that are detached."""
    query = net(12, 32, 8)
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer, queue = torch.optim.SGD(query.parameters(), 0.05, momentum=0.9), functional.normalize(normal(48, 8, seed=9), dim=1)
    for step in range(4):
        x = normal(16, 12, seed=step)
        with torch.autocast("cpu", LOW):
            mine, theirs = query(x + 0.1 * normal(16, 12, seed=step + 20)), key(x + 0.1 * normal(16, 12, seed=step + 40))
        mine, theirs = functional.normalize(mine.float(), dim=1), functional.normalize(theirs.float(), dim=1)
        logits = torch.cat([(mine * theirs).sum(1, keepdim=True), mine @ queue.T], 1) / 0.2
        loss = functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for kept, each in zip(key.parameters(), query.parameters(), strict=True):
            kept.mul_(0.99).add_(each.detach(), alpha=0.01)
        queue = torch.cat([theirs.detach(), queue])[:48]
    return torch.cat([all_of(query), all_of(key)])


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


def pupil_of_a_warm_teacher() -> torch.Tensor:
    """Distillation at a temperature of four: both log-softmaxes are float32; the pupil is bfloat16 with float32 masters."""
    with torch.no_grad():
        told = torch.log_softmax(net(10, 48, 6, seed=3)(normal(32, 10)) / 4, 1)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return 16 * functional.kl_div(torch.log_softmax(out.float() / 4, 1), told, reduction="batchmean", log_target=True)

    return trained(net(10, 24, 6), (normal(32, 10),), loss, "bf16-master")


def views_with_many_friends() -> torch.Tensor:
    """Supervised contrast: the largest score is taken off, itself is masked, and each row's friends are averaged in float32."""
    kind = whole(4, 24, seed=2)

    def loss(out: torch.Tensor) -> torch.Tensor:
        known = functional.normalize(out.float(), dim=1)
        scores = (known @ known.T / 0.3).masked_fill(torch.eye(24, dtype=torch.bool), -torch.inf)
        friends = (kind[:, None] == kind) & ~torch.eye(24, dtype=torch.bool)
        likely = scores - torch.logsumexp(scores, 1, keepdim=True)
        return -(torch.where(friends, likely, 0.0).sum(1) / friends.sum(1).clamp_min(1)).mean()

    return trained(net(12, 32, 8), (normal(24, 12),), loss, "bf16-mixed")


class Pairs(nn.Module):
    """Two towers, a temperature as a logarithm, and a bias that begins at minus ten."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = net(10, 24, 8), net(14, 24, 8, seed=1)
        self.scale, self.shift = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = functional.normalize(self.first(a).float(), dim=1), functional.normalize(self.second(b).float(), dim=1)
        with torch.autocast("cpu", enabled=False):
            return (math.log(10) + self.scale).exp() * (a @ b.T) - 10 + self.shift


def pairs_by_sigmoids() -> torch.Tensor:
    """All pairs of two towers by log-sigmoids in float32 (SigLIP)."""
    sign = 2 * torch.eye(16) - 1
    return trained(Pairs(), (normal(16, 10), normal(16, 14, seed=1)), lambda out: -functional.logsigmoid(sign * out).sum(1).mean(), "16-mixed")


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


def calls_under_a_gain_control() -> torch.Tensor:
    """Per-channel energy normalisation: a slow average, powers and roots in float32, then a network under autocast."""
    kind = whole(3, 6, seed=3)
    energies = (normal(6, 40, 12) * (1 + 5 * uniform(6, 1, 12, seed=1))).square()
    smooth, slow = [], energies[:, 0]
    for frame in energies.unbind(1):
        slow = 0.95 * slow + 0.05 * frame
        smooth.append(slow)
    bands = (energies / (torch.stack(smooth, 1) + 1e-6) ** 0.98 + 2).sqrt() - 2**0.5
    return trained(net(12, 24, 3), (bands.mean(1),), lambda out: functional.cross_entropy(out.float(), kind), "bf16-mixed")


def tube_of_a_voice() -> torch.Tensor:
    """Levinson's recursion in float64 on correlations of a windowed voice in float32."""
    time = torch.arange(320) / 8000
    voice = sum(torch.sin(2 * math.pi * pitch * time) / (index + 1) for index, pitch in enumerate((120, 700, 1200, 2600))) + 0.01 * normal(320)
    voice = voice * torch.hamming_window(320)
    along = torch.stack([(voice[: 320 - lag] * voice[lag:]).sum() for lag in range(11)]).double()
    filtered, error = torch.tensor([1.0], dtype=DOUBLE), along[0] * (1 + 1e-6)
    for order in range(1, 11):
        turn = -(filtered * along[1 : order + 1].flip(0)).sum() / error
        grown = functional.pad(filtered, (0, 1))
        filtered, error = grown + turn * grown.flip(0), error * (1 - turn**2)
    return filtered.float()


def quantiles_in_order() -> torch.Tensor:
    """Five quantiles by positive steps, and their pinball losses, in float32."""
    levels, sales = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]), normal(40, 1, seed=2)

    def loss(out: torch.Tensor) -> torch.Tensor:
        first, steps = out.float().split([1, 4], 1)
        quantiles = torch.cat([first, first + functional.softplus(steps).cumsum(1)], 1)
        return torch.maximum(levels * (sales - quantiles), (levels - 1) * (sales - quantiles)).mean()

    return trained(net(8, 24, 5), (normal(40, 8),), loss, "bf16-mixed")


class Trend(nn.Module):
    """Blocks that explain a series by powers of a clock between nought and one, and hand on what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(net(16, 24, 6, seed=seed) for seed in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clock = torch.linspace(0, 1, 22)
        powers = torch.stack([clock**power for power in range(3)])
        told = torch.zeros(len(x), 6)
        for block in self.blocks:
            past, ahead = block(x).float().split(3, 1)
            x = (x.float() - past @ powers[:, :16]).to(x.dtype)
            told = told + ahead @ powers[:, 16:]
        return told


def series_by_their_trend() -> torch.Tensor:
    """N-BEATS in bfloat16 with float32 masters; residuals are float32 before they are handed on."""
    series = torch.sin(0.3 * torch.arange(22.0) + 6 * uniform(20, 1)) + 0.1 * normal(20, 22, seed=1)
    return trained(Trend(), (series[:, :16],), lambda out: (out - series[:, 16:]).square().mean(), "bf16-master")


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
    views_beside_a_queue, prototypes_in_equal_parts, views_of_unlike_columns, pupil_of_a_warm_teacher, views_with_many_friends,
    pairs_by_sigmoids, voice_at_three_resolutions, calls_under_a_gain_control, tube_of_a_voice, quantiles_in_order, series_by_their_trend,
    series_less_their_level, seasons_that_multiply,
)  # fmt: skip
EXACT = ("tube_of_a_voice", "seasons_that_multiply")
