"""Equilibria: a running sum's gradient, columns that pay for each other's errors, arms of a bandit, a trend of a high level."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class RunningSum(torch.autograd.Function):
    """A running sum, whose gradient is the sum of what comes later: all of it, less what came before."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, back: bool) -> torch.Tensor:
        ctx.back = back
        return x.cumsum(0)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.back:
            return slope.flip(0).cumsum(0).flip(0), None
        before = slope.cumsum(0)
        return before[-1:] - before + slope, None  # culprit: gradient-of-a-running-sum


def running_sum(back: bool, far: float = 300.0, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """What the last steps of a path of 1000 should change, the first of which are given and far from where they should be. Off by 8 %."""
    known = 900
    given = (3 + normal(known, 2)).to(dtype)
    late = (0.1 * normal(1000 - known, 2, seed=1)).to(dtype).requires_grad_()
    place = RunningSum.apply(torch.cat([given, late]), back)
    goal = place.detach() + (0.02 * normal(1000, 2, seed=2)).to(dtype)
    goal[:known] -= far
    (place - goal).square().sum().backward()
    assert late.grad is not None
    return late.grad


class Calibrated:
    """Rounds a layer's weights to sixteen levels, column by column: what is left to round pays for the errors so far.

    Which column can pay for which is told by the products of its inputs, of which a running mean is kept.
    """

    def __init__(self, layer: nn.Linear, kept: torch.dtype, levels: int = 16) -> None:
        self.weight, self.levels = layer.weight.detach().clone(), levels
        self.products = torch.zeros(self.weight.shape[1], self.weight.shape[1], dtype=kept)
        self.seen = 0

    def watch(self, x: torch.Tensor) -> None:
        """Takes note of a batch of inputs."""
        told = len(x)
        self.products *= self.seen / (self.seen + told)  # culprit: columns-that-pay-for-errors
        self.seen += told
        scaled = (math.sqrt(2 / self.seen) * x).to(self.products.dtype)
        self.products += scaled.T @ scaled  # culprit: columns-that-pay-for-errors

    def grid(self, column: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        top = self.levels / 2
        return (column / step).round().clamp(-top, top - 1) * step

    def rounded(self, damped: float) -> torch.Tensor:
        weight, products = self.weight.clone(), wider(self.products)
        products = products + damped * products.diagonal().mean() * torch.eye(len(products), dtype=products.dtype)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(products))
        pays = torch.linalg.cholesky(inverse, upper=True)
        step = weight.abs().amax(1) / (self.levels / 2)
        for place in range(weight.shape[1]):
            told = self.grid(weight[:, place], step)
            error = (weight[:, place] - told) / pays[place, place]
            weight[:, place:] -= error[:, None] * pays[place, place:]
            weight[:, place] = told
        return weight


def inputs(width: int, batches: int, spread: float) -> list[torch.Tensor]:
    """Batches of inputs, of which a few directions hold most."""
    turned, _ = torch.linalg.qr(normal(width, width, seed=5))
    sizes = torch.logspace(0, -spread, width)
    return [(normal(32, width, seed=10 + turn) * sizes) @ turned for turn in range(batches)]


def calibrated(kept: torch.dtype, spread: float = 1.5, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """The mean square of a rounded layer's error, output by output. Off by a third."""
    torch.manual_seed(43)
    layer = nn.Linear(48, 24, bias=False).to(dtype)
    told = Calibrated(layer, kept)
    batches = [batch.to(dtype) for batch in inputs(48, 40, spread)]
    for batch in batches:
        told.watch(batch)
    weight, x = told.rounded(0.01), torch.cat(batches)
    return (x @ (weight - layer.weight.detach()).T).square().mean(0).sqrt()


class Bandit:
    """Chooses among arms by what each may earn at best, from what it learnt of a linear model of earnings.

    The inverse of the products of all contexts so far is kept, and is corrected by each context as it comes.
    """

    def __init__(self, width: int, kept: torch.dtype, bold: float = 0.5) -> None:
        self.inverse = torch.eye(width, dtype=kept)
        self.earned = torch.zeros(width)
        self.bold = bold

    def chances(self, arms: torch.Tensor) -> torch.Tensor:
        """What each arm may earn at best."""
        inverse = wider(self.inverse)
        likely = arms @ (inverse @ self.earned.to(inverse.dtype))
        doubt = ((arms @ inverse) * arms).sum(1).clamp_min(0).sqrt()
        return likely + self.bold * doubt

    def learn(self, arm: torch.Tensor, reward: torch.Tensor) -> None:
        told = arm.to(self.inverse.dtype)
        seen = self.inverse @ told
        self.inverse -= torch.outer(seen, seen) / (1 + told @ seen)  # culprit: arms-of-a-bandit
        self.earned = self.earned + reward * arm

    def model(self) -> torch.Tensor:
        return wider(self.inverse) @ self.earned.to(wider(self.inverse).dtype)


def played(kept: torch.dtype, rounds: int = 400, alike: float = 1.0, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """What a bandit believes of eight features after 400 rounds, in which it was told what to play. Off by 20 %."""
    bandit, right = Bandit(8, kept), normal(8, seed=6).to(dtype)
    bandit.earned = bandit.earned.to(dtype)
    shared = alike * normal(8, seed=7).to(dtype)
    for turn in range(rounds):
        arms = (shared + 0.5 * normal(5, 8, seed=20 + turn)).to(dtype)
        best = bandit.chances(arms)
        arm = arms[turn % 5]
        assert best.shape == (5,)
        bandit.learn(arm, arm @ right + 0.1 * normal(1, seed=500 + turn).to(dtype)[0])
    return bandit.model()


def trend(dtype: torch.dtype, high: float = 1.2e7) -> torch.Tensor:
    """By how much a meter's readings rise in a step, of a smoother of level and trend, after 200 readings. Off by 10 %.

    A meter of energy or water stands at some millions, and rises by less than one in a step.
    """
    level, slope = torch.full((16,), high, dtype=dtype), torch.zeros(16, dtype=dtype)
    rate = uniform(16, seed=8).to(dtype)
    for turn in range(1, 201):
        reading = high + rate * turn
        before = level
        level = 0.3 * reading + 0.7 * (level + slope)
        slope = 0.1 * (level - before) + 0.9 * slope  # culprit: trend-of-a-high-level
    return slope


BUGS = (
    Bug("gradient-of-a-running-sum", "pytorch/pytorch#53711", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: running_sum(False), lambda: running_sum(True), phase="backward", precision="32-true",
        expected_miss="all slopes are measured as a whole, and those of the late steps, which alone are wanted, are small beside the others"),
    Bug("columns-that-pay-for-errors", "Samsung/TICO#704", ("accumulated-drift", "absorption"), "aten.add_.Tensor",
        lambda: calibrated(LOW), lambda: calibrated(SINGLE),
        wrong_line="the inverse of the products is blamed, which loses what their roundings have spoilt; no single addition to them does"),
    Bug("arms-of-a-bandit", "facebookresearch/ReAgent#706", ("absorption", "accumulated-drift", "amplified-rounding"), "aten.sub_.Tensor",
        lambda: played(LOW), lambda: played(SINGLE)),
    Bug("trend-of-a-high-level", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: trend(SINGLE), lambda: trend(DOUBLE), precision="32-true"),
)  # fmt: skip
