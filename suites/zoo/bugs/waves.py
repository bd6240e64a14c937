"""Waves and likelihoods: an oscillator that runs on, a seismogram, losses as a histogram, pairs of answers."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
PRECISION = "32-true"


class Terrain:
    """Voices that walk along curves over a terrain, a control block at a time."""

    def __init__(self, pitches: torch.Tensor, rate: int, block: int, wrapped: bool) -> None:
        self.dtype, self.wrapped = DOUBLE if wrapped else SINGLE, wrapped
        self.step = (2 * math.pi * pitches.to(DOUBLE) / rate).to(self.dtype)
        self.phase, self.within, self.block = torch.zeros_like(self.step), torch.arange(block).to(self.dtype), block

    def perform(self) -> torch.Tensor:
        theta = self.phase[:, None] + self.step[:, None] * self.within  # culprit: phase-that-runs-on
        self.phase = self.phase + self.step * self.block  # culprit: phase-that-runs-on
        if self.wrapped:
            self.phase = self.phase % (2 * math.pi)
        x, y = theta.sin().float(), (2 * theta).cos().float()
        return 0.5 * (x * y + 0.3 * x)


def held_notes(wrapped: bool) -> torch.Tensor:
    """The end of seven seconds of three notes at 48 kHz."""
    synthesizer = Terrain(torch.tensor([220.0, 554.37, 987.77]), 48_000, 1024, wrapped)
    blocks = [synthesizer.perform() for _ in range(7 * 48_000 // 1024)]
    return torch.cat(blocks[-8:], 1)


def matched_filter(data: torch.Tensor, template: torch.Tensor, by_running_sum: bool) -> torch.Tensor:
    """Correlation coefficients of a template with each window of a trace."""
    size = len(template)
    windows = data.unfold(0, size, 1)
    if by_running_sum:
        running = functional.pad(torch.cumsum(data.square(), 0), (1, 0))  # culprit: window-of-a-running-sum
        energy = running[size:] - running[:-size]  # culprit: window-of-a-running-sum
    else:
        energy = windows.square().sum(1)
    return windows @ template / (template.square().sum() * energy.clamp_min(1e-12)).sqrt()


def detections(by_running_sum: bool) -> torch.Tensor:
    """An hour after a large earthquake: where a small one is found by its template."""
    template = normal(200, seed=1) * torch.hann_window(200)
    data = 0.3 * normal(18_000)
    data[500:3500] += 900 * normal(3000, seed=2) * torch.exp(-torch.arange(3000) / 600)
    data[12_000:12_200] += template
    return matched_filter(data, template, by_running_sum)[9000:]


def loss_histogram(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithms of losses, which a board gets, and their mean."""
    logarithms = torch.log(1e-10 + losses)  # culprit: logarithms-of-losses
    return logarithms.float(), logarithms.float().mean()


def charted(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of 300 tokens by a model in half, some of which it knows for certain."""
    targets = torch.arange(300) % 40
    logits = 2 * normal(300, 40)
    logits[torch.arange(300), targets] += 16 * uniform(300, seed=1)
    losses = functional.cross_entropy(logits.to(HALF).to(dtype), targets, reduction="none")  # culprit: logarithms-of-losses
    return loss_histogram(losses)


def preference_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float, by_logsigmoid: bool) -> torch.Tensor:
    """Minus the logarithm of the probability that the chosen answer is preferred."""
    margin = beta * (chosen - rejected)
    if by_logsigmoid:
        return -functional.logsigmoid(margin)
    return -torch.log(torch.sigmoid(margin))  # culprit: pairs-far-apart


def preferred(by_logsigmoid: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of 32 pairs of long answers and the gradient that their tokens get."""
    tokens = (-1.1 * uniform(2, 32, 900, seed=3)).requires_grad_()
    lengths = torch.stack([200 + 100 * uniform(32), 300 + 600 * uniform(32, seed=1)]).long()
    lengths[:, ::4] = torch.tensor([[890], [120]])
    kept = tokens * (torch.arange(900) < lengths[..., None])
    chosen, rejected = kept.sum(-1)
    losses = preference_loss(chosen, rejected, 0.5, by_logsigmoid)
    losses.mean().backward()
    assert tokens.grad is not None
    return losses.detach(), tokens.grad


BUGS = (
    Bug("phase-that-runs-on", "csound/csound#2867", ("amplified-rounding", "accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: held_notes(False), lambda: held_notes(True), precision=PRECISION),
    Bug("window-of-a-running-sum", "beridel/fast_matched_filter#17", ("amplified-rounding", "cancellation"), "aten.cumsum.default",
        lambda: detections(True), lambda: detections(False), precision=PRECISION),
    Bug("logarithms-of-losses", "tdrussell/qlora-pipe#23", ("vanished-constant", "nan", "overflow"), "aten.add.Tensor", lambda: charted(HALF),
        lambda: charted(SINGLE)),
    Bug("pairs-far-apart", "thinking-machines-lab/tinker-cookbook#188", ("underflow", "overflow", "nan"), "aten.sigmoid.default",
        lambda: preferred(False), lambda: preferred(True), precision=PRECISION),
)  # fmt: skip
