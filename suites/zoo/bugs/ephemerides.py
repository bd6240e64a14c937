"""Ephemerides: dates of exposures, the clock of a run that goes on, chances that add up over a year, and shocks in an envelope."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
PRECISION = "32-true"


class Stack:
    """Exposures of one field, whose dates are kept beside them."""

    def __init__(self, dates: torch.Tensor, kept: torch.dtype) -> None:
        self.dates = dates.to(kept)  # culprit: dates-of-a-night

    def since_the_first(self) -> torch.Tensor:
        return (self.dates - self.dates[0]).to(SINGLE)  # culprit: dates-of-a-night

    def track(self, start: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        """Pixels, (candidates, exposures, 2), where a body would be in each exposure; velocity in pixels a day."""
        return start[:, None] + velocity[:, None] * self.since_the_first()[:, None]


def night(kept: torch.dtype) -> torch.Tensor:
    """Light that is gathered along the tracks of twelve candidates in ten exposures of one night. Off by 46 %."""
    dates = 59450.869 + 0.0027 * torch.arange(10, dtype=DOUBLE)
    start, velocity = 60 + 10 * normal(12, 2), 500 + 40 * normal(12, 2, seed=1)
    true = start[:, None] + velocity[:, None] * (dates - dates[0]).to(SINGLE)[:, None]
    miss = Stack(dates, kept).track(start, velocity) - true - 0.2
    return torch.exp(-miss.square().sum(-1) / 2).sum(-1)


class Run:
    """A model of the weather that goes on from a restart, with a clock."""

    def __init__(self, at: float, step: float, clock: torch.dtype) -> None:
        self.begun = torch.tensor(at, dtype=clock)
        self.now, self.step = self.begun, step
        self.warmth = torch.zeros(4, dtype=clock)

    def advance(self, heating: torch.Tensor) -> torch.Tensor:
        self.now = self.now + self.step  # culprit: clock-of-a-restart
        elapsed = self.now - self.begun
        self.warmth = heating.to(elapsed.dtype) * elapsed / 60
        return self.warmth


def restarted(clock: torch.dtype) -> torch.Tensor:
    """Warmth after fifty steps of 0.3 s, on the 25th day: the clock has steps of a quarter of a second there. Off by 17 %."""
    run = Run(2_130_000.0, 0.3, clock)
    for _ in range(50):
        warmth = run.advance(torch.tensor([0.5, 1.0, 2.0, 3.0]))
    return warmth.to(SINGLE)


def log1pf(x: torch.Tensor) -> torch.Tensor:
    """A library's logarithm of one and `x`."""
    return torch.log(1 + x)  # culprit: hazards-of-a-minute


def survival(hazard: torch.Tensor, exact: bool, minutes: int = 525_600) -> torch.Tensor:
    """The chance that a part outlives a year, of what it fails by in a minute."""
    logarithm = torch.log1p(-hazard) if exact else log1pf(-hazard)
    return torch.exp(minutes * logarithm)


def fleet(exact: bool, dtype: torch.dtype = SINGLE) -> tuple[torch.Tensor, torch.Tensor]:
    """How many parts of a fleet fail in a year, by kind, and what they cost. Off by 6 %."""
    hazard = (10 ** (-7.5 + 1.2 * uniform(60))).to(dtype)
    failed = 1 - survival(hazard, exact)
    return failed, (failed * (100 + 900 * uniform(60, seed=1)).to(dtype)).sum()


def mean_and_deviation(x: torch.Tensor, two_passes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row: its mean, and its standard deviation."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    if two_passes:
        return mean, ((x - mean).square().sum(-1, keepdim=True) / x.shape[-1]).sqrt()
    power = x.square().sum(-1, keepdim=True) / x.shape[-1]
    return mean, (power - mean.square()).clamp_min(0).sqrt()  # culprit: envelope-of-a-carrier


def shocks(two_passes: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How noisy the envelope of a carrier is, block by block, in parts of a million of it. Off by 220 %."""
    envelope = (1 + 8e-5 * (1 + uniform(24, 1, seed=2)) * normal(24, 256)).to(dtype)
    mean, deviation = mean_and_deviation(envelope, two_passes)
    return 1e6 * deviation / mean


BUGS = (
    Bug("dates-of-a-night", "dirac-institute/kbmod#568", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: night(SINGLE), lambda: night(DOUBLE), precision=PRECISION),
    Bug("clock-of-a-restart", "erf-model/ERF#3161", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: restarted(SINGLE), lambda: restarted(DOUBLE), precision=PRECISION),
    Bug("hazards-of-a-minute", "CE-Programming/toolchain#515", ("amplified-rounding", "absorption", "cancellation"), "aten.add.Tensor",
        lambda: fleet(False), lambda: fleet(True), precision=PRECISION),
    Bug("envelope-of-a-carrier", "gnuradio/volk#290", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: shocks(False), lambda: shocks(True), precision=PRECISION),
)  # fmt: skip
