"""Workpieces: defects of parts, times of runs, cents off a note, ways to a picture, slots of a memory, styles of a face."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Parts:
    """What a network sees of good parts, place by place: a mean, and the inverse of a covariance of few parts."""

    def __init__(self, seen: torch.Tensor) -> None:
        self.mean = seen.mean(0)
        away = seen - self.mean
        spread = torch.einsum("npi,npj->pij", away, away) / (len(seen) - 1)
        self.inverse = torch.linalg.inv(spread + 0.01 * torch.eye(seen.shape[-1], dtype=seen.dtype))  # culprit: defects-of-a-part

    def distance(self, part: torch.Tensor) -> torch.Tensor:
        away = part - self.mean
        return torch.einsum("pi,pij,pj->p", away, self.inverse, away).sqrt()  # culprit: defects-of-a-part


def defects(kind: torch.dtype, height: float = 900.0, many: int = 7) -> torch.Tensor:
    """How far eight places of a new part are from those of good parts. NaN, and garbage."""
    shared = uniform(3, 20, seed=101)
    good = height * (normal(many, 8, 3, seed=102) @ shared + 1)
    new = height * (normal(8, 3, seed=103) @ shared + 1) + 0.05 * normal(8, 20, seed=104)
    return Parts(good.to(kind)).distance(new.to(kind))


class Tracker:
    """Values of a run with the times at which they were told."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind, self.times, self.values = kind, [], []

    def track(self, value: float, seconds: float) -> None:
        self.times.append(torch.tensor(seconds, dtype=DOUBLE).to(self.kind))  # culprit: times-of-a-run
        self.values.append(value)

    def pace(self) -> torch.Tensor:
        """Steps per minute over the last few steps, and how long the run has taken."""
        times = torch.stack(self.times)
        return torch.cat([60 * 5 / (times[5:] - times[:-5] + 1e-3), times[-1:] - times[:1]])  # culprit: times-of-a-run


def run_times(kind: torch.dtype, began: float = 1_646_899_200.25) -> torch.Tensor:
    """How fast a run of forty steps of eleven seconds went. Garbage."""
    tracker = Tracker(kind)
    for step in range(40):
        tracker.track(1 / (1 + step), began + 11.0 * step + 2 * float(uniform(1, seed=step)))
    return tracker.pace()


class Tuner(nn.Module):
    """How many cents a note is off, from how salient each pitch is in a moment."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.smooth = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        with torch.no_grad():
            self.smooth.weight.copy_(torch.tensor([[[0.25, 0.5, 0.25]]]))
        self.cents = (3497.3794 + 20 * torch.arange(180.0)).to(kind)  # culprit: cents-off-a-note

    def forward(self, salient: torch.Tensor) -> torch.Tensor:
        salient = wider(self.smooth(salient[:, None])[:, 0])
        pitch = (salient * wider(self.cents)).sum(-1) / salient.sum(-1)  # culprit: cents-off-a-note
        return pitch - 100 * ((pitch - 97.3794) / 100).round() - 97.3794


def cents_off(kind: torch.dtype) -> torch.Tensor:
    """How far five notes are off, in cents, as a tuner tells. Off by an eighth."""
    heard = torch.tensor([[31.2], [60.4], [90.9], [121.3], [151.0]])
    salient = torch.exp(-(torch.arange(180.0) - heard).square() / 2)
    return Tuner(kind).to(LOW)(salient.to(LOW)).detach()


class Painter(nn.Module):
    """Tells the picture that a noisy one shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(106)
        self.body, self.head = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        return noisy + 0.02 * self.head(torch.tanh(self.body(noisy)))


def speeds(kind: torch.dtype, time: float = 0.985) -> torch.Tensor:
    """The way from a noisy picture to the picture, for each unit of time that is left. Off by half."""
    painter = Painter().to(LOW)
    noisy = (time * normal(6, 32, seed=107) + (1 - time) * normal(6, 32, seed=108)).to(LOW)
    inner = 0.02 * wider(painter.head(torch.tanh(painter.body(noisy))))
    shown = painter(noisy) if kind == LOW else wider(noisy) + inner
    way = (shown - noisy.to(kind)) / (1 - time)  # culprit: way-to-a-picture
    return wider(way.detach())


class Slots:
    """Patterns that were met, how often each was, and which was met last."""

    def __init__(self, counts: torch.Tensor) -> None:
        self.patterns = normal(len(counts), 8, seed=109)
        self.counts = counts

    def meet(self, pattern: torch.Tensor) -> None:
        nearest = (self.patterns - pattern).square().sum(-1).argmin()
        met = (torch.arange(len(self.counts)) == nearest).to(self.counts.dtype)
        self.counts = self.counts + met  # culprit: slots-of-a-memory

    def spare(self) -> torch.Tensor:
        """The slot that has been met least, which is given to a pattern that is new."""
        return self.counts.argmin()


def slots(kind: torch.dtype, before: int = 2**24, turns: int = 36) -> torch.Tensor:
    """How often each slot was met of late, and which is given up: it is the one that was met most."""
    counts = torch.tensor([before, before, before + 4, before + 8])
    memory = Slots(counts.to(kind))
    for turn in range(turns):
        memory.meet(memory.patterns[turn % 2] + 0.1 * normal(8, seed=turn))
    met = memory.counts.double() - counts
    return torch.cat([met, memory.spare()[None].double()])


class Styled(nn.Module):
    """A convolution whose weights are scaled by a style, and brought back to norm one."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(outside, inside, 3, 3, seed=110))
        self.affine = nn.Linear(16, inside)

    def forward(self, x: torch.Tensor, style: torch.Tensor, before: bool) -> torch.Tensor:
        style = self.affine(style)
        weight = self.weight
        if before:
            weight = weight / weight.abs().amax((1, 2, 3), keepdim=True)
            style = style / style.abs().amax(-1, keepdim=True)
        weight = weight * style[0, None, :, None, None]
        norm = weight.square().sum((1, 2, 3))  # culprit: styles-of-a-face
        return nn.functional.conv2d(x, weight * torch.rsqrt(norm + 1e-8)[:, None, None, None], padding=1)


def styles(before: bool, strength: float = 40.0) -> torch.Tensor:
    """A face that is drawn in a strong style, in half precision. It is grey."""
    torch.manual_seed(111)
    layer = Styled(24, 6).to(HALF)
    return wider(layer(normal(1, 24, 8, 8).to(HALF), (strength * normal(1, 16, seed=1)).to(HALF), before).detach())


BUGS = (
    Bug("defects-of-a-part", "open-edge-platform/anomalib#392", ("amplified-rounding", "nan", "cancellation"), "aten.linalg_inv_ex.default",
        lambda: defects(SINGLE), lambda: defects(DOUBLE), precision="32-true"),
    Bug("times-of-a-run", "aimhubio/aim#1494", ("amplified-rounding", "cancellation", "integer-rounding"), "aten._to_copy.default",
        lambda: run_times(SINGLE), lambda: run_times(DOUBLE), precision="32-true"),
    Bug("cents-off-a-note", "", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: cents_off(LOW), lambda: cents_off(SINGLE), module="Tuner",
        expected_miss="a table that a program casts is rounded once, and a wide difference of what is made from it counts where no digit is left"),
    Bug("way-to-a-picture", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: speeds(LOW), lambda: speeds(SINGLE)),
    Bug("slots-of-a-memory", "SlopDotCash/asi#1847", ("absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: slots(SINGLE), lambda: slots(DOUBLE), precision="32-true"),
    Bug("styles-of-a-face", "Sanster/IOPaint#408", ("overflow",), "aten.sum.dim_IntList",
        lambda: styles(False), lambda: styles(True)),
)  # fmt: skip
