"""Meters, fits, shifts, clocks and draws: what stops to count, is squared before it is solved, or is compared with what it was made of."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class EnergyMeter:
    """The energy in watt hours that each of several sockets has used since it was installed."""

    def __init__(self, read: torch.Tensor) -> None:
        self.used = read

    def tick(self, power: torch.Tensor) -> None:
        """One second at these powers in watts."""
        self.used = self.used + power / 3600  # culprit: meter-of-a-socket

    def run(self, powers: torch.Tensor) -> torch.Tensor:
        start = self.used.clone()
        for power in powers:
            self.tick(power)
        return (self.used - start).float()


def used_in_ten_minutes(dtype: torch.dtype) -> torch.Tensor:
    """What six sockets with eight megawatt hours or less behind them use in ten minutes; small ones stand still in float32. Off by 100 % of it."""
    meter = EnergyMeter(torch.tensor([8.2e3, 2.7e4, 6.6e4, 1.4e5, 1.1e6, 8.4e6]).to(dtype))
    return meter.run(torch.tensor([1.2, 4, 12, 20, 90, 1500]) * (1 + 0.02 * normal(600, 6)))


class LineFit:
    """A straight line through points, by the solution of its normal equations."""

    def __init__(self, centred: bool) -> None:
        self.centred = centred

    def fit(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The slope and where the line meets the axis, of each pixel in a column of `y`."""
        if self.centred:
            away = x - x.mean()
            slope = (away[:, None] * (y - y.mean(0))).sum(0) / away.square().sum()
            return slope, y.mean(0) - slope * x.mean()
        count, squares = len(x), (x * x).sum()  # culprit: line-through-counts
        determinant = count * squares - x.sum() * x.sum()  # culprit: line-through-counts
        slope = (count * (x[:, None] * y).sum(0) - x.sum() * y.sum(0)) / determinant  # culprit: line-through-counts
        return slope, (squares * y.sum(0) - x.sum() * (x[:, None] * y).sum(0)) / determinant  # culprit: line-through-counts


def detector(centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines of eight pixels of a detector: electrons of a frame beside those of a twin frame, at levels near sixty thousand. Off by 23 %."""
    x = (59000 + 700 * uniform(13)).round().sort().values
    y = (1.04 * x[:, None] - 21 + 30 * normal(13, 8, seed=1)).round()
    return LineFit(centred).fit(x, y)


def shift_between(first: torch.Tensor, second: torch.Tensor, guarded: bool) -> torch.Tensor:
    """How far a picture has moved: the peak of its phase correlation, in pixels."""
    product = torch.fft.fft2(first) * torch.fft.fft2(second).conj()
    length = product.abs()  # culprit: shift-of-a-smooth-picture
    if guarded:
        landscape = torch.fft.ifft2(product / (length + 1e-12 * length.amax())).real
    else:
        landscape = torch.fft.ifft2(product / length).real  # culprit: shift-of-a-smooth-picture
    place = landscape.flatten().argmax()
    return torch.stack([place // first.shape[1], place % first.shape[1]]).float()


def moved(guarded: bool) -> torch.Tensor:
    """The shift of a smooth spot, some of whose bins are nought in float32; nought by nought makes all of it NaN, and no shift. Off by 100 %."""
    row, column = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")

    def spot(y: float, x: float) -> torch.Tensor:
        return torch.exp(-((row - y).square() + (column - x).square()) / 50)

    return shift_between(spot(36, 31), spot(29, 28), guarded)


class StepController:
    """Steps that grow and shrink with an error and are kept at a least size, where, but for a billionth, they are taken whatever the error."""

    def __init__(self, least: float, known: bool) -> None:
        self.least, self.known = least, known

    def solve(self, y: torch.Tensor, start: float, end: float, slope: nn.Module) -> torch.Tensor:
        t, size, tries = torch.tensor(start), torch.tensor(2 * self.least), 0
        while t < end:
            tries += 1
            if tries > 250:
                raise RuntimeError("the largest number of steps was reached")
            step = torch.minimum(size, end - t)
            new = t + step  # culprit: length-of-the-last-step
            first = slope(t, y)
            second = slope(new, y + step * first)
            error = (step * (second - first) / 2).abs().max() / 1e-5
            length = step if self.known else new - t  # culprit: length-of-the-last-step
            if error <= 1 or length <= self.least + 1e-9:  # culprit: length-of-the-last-step
                t, y = new, y + step * (first + second) / 2
            size = (step * (0.9 / error.sqrt()).clamp(0.3, 3)).clamp(min=self.least)
        return y


class Driven(nn.Module):
    """A mass that is pushed hard now and then."""

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([y[1], 40 * torch.sin(30 * (t - 96)) - 6 * y[0]])


def reached(known: bool) -> torch.Tensor:
    """Where the mass is after a fifth of a second that starts at 130.1; a least step of 0.001 looks longer there, and is tried for ever."""
    return StepController(1e-3, known).solve(torch.tensor([0.1, 0.0]), 130.1, 130.3, Driven())


class ConjugateGradient:
    """The solution of a symmetric system; it stops where the residual that it carries along is small, or the one that it can see."""

    def __init__(self, matrix: torch.Tensor, tolerance: float, replaced: bool) -> None:
        self.matrix, self.tolerance, self.replaced = matrix, tolerance, replaced

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        x, residual = torch.zeros_like(b), b.clone()
        way, size = residual, residual @ residual
        for _ in range(300):
            image = self.matrix @ way
            rate = size / (way @ image)
            x = x + rate * way  # culprit: solver-that-says-it-is-done
            residual = self.beside(x, b) if self.replaced else residual - rate * image  # culprit: solver-that-says-it-is-done
            new = residual @ residual
            if new.sqrt() <= self.tolerance * b.norm():
                break
            way, size = residual + new / size * way, new
        return x

    def beside(self, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (b.double() - self.matrix.double() @ x.double()).to(b.dtype)


def heated(dtype: torch.dtype, replaced: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Temperatures along a rod and what flows in it, by a solver in bfloat16 that says its residual is a thousandth. Off by 3 %, and by 34 %."""
    size, beside = 96, torch.ones(95)
    matrix = (2 + 1 / 64) * torch.eye(size) - torch.diag(beside, 1) - torch.diag(beside, -1)
    found = ConjugateGradient(matrix.to(dtype), 1e-3, replaced).solve((uniform(size) / 16).to(LOW).to(dtype)).float()
    return found, found.diff()


def without_replacement(weights: torch.Tensor, chances: torch.Tensor, count: int, by_logarithms: bool) -> torch.Tensor:
    """Which things are drawn, by the largest keys of Efraimidis and Spirakis."""
    keys = torch.log(chances) / weights if by_logarithms else chances ** (1 / weights)  # culprit: rarely-drawn
    return keys.topk(count, -1).indices


def drawn(by_logarithms: bool) -> torch.Tensor:
    """How often each of six things is among three that are drawn, whose weights are a few thousandths. Off by 9 %."""
    weights = torch.tensor([0.02, 0.0035, 0.005, 0.025, 0.008, 0.006])
    found = without_replacement(weights, uniform(4000, 6).clamp_min(1e-7), 3, by_logarithms)
    return torch.bincount(found.flatten(), minlength=6) / 4000


def next_letter(logits: torch.Tensor, dtype: torch.dtype, seed: int) -> int:
    """One letter, which numpy draws; it asks that chances add up to one."""
    chances = torch.softmax(logits.to(dtype), -1)  # culprit: letter-by-numpy
    return int(np.random.default_rng(seed).choice(len(chances), p=chances.double().numpy()))


def letters(dtype: torch.dtype) -> torch.Tensor:
    """Ten letters by a head in bfloat16, whose chances add up to one but for two thousandths, which numpy refuses."""
    head = nn.Linear(16, 65)
    with torch.no_grad():
        head.weight.copy_(normal(65, 16) / 4)
        head.bias.zero_()
        logits = head.to(LOW)(normal(10, 16, seed=1).to(LOW))
    return torch.tensor([next_letter(each, dtype, seed) for seed, each in enumerate(logits)]).float()


BUGS = (
    Bug("meter-of-a-socket", "openshwprojects/OpenBK7231T_App#1009", ("cancellation", "absorption"), "aten.add.Tensor",
        lambda: used_in_ten_minutes(WIDE), lambda: used_in_ten_minutes(DOUBLE), precision="32-true"),
    Bug("line-through-counts", "swincas/cookies-n-code#8", ("cancellation", "integer-rounding", "amplified-rounding"), "aten.sub.Tensor",
        lambda: detector(False), lambda: detector(True), precision="32-true"),
    Bug("shift-of-a-smooth-picture", "opencv/opencv#29850", ("underflow", "nan"), "aten.abs.default", lambda: moved(False), lambda: moved(True),
        precision="32-true"),
    Bug("length-of-the-last-step", "patrick-kidger/diffrax#703", ("cancellation", "decision-flip", "amplified-rounding"), "aten.sub.Tensor",
        lambda: reached(False), lambda: reached(True), precision="32-true", raises=RuntimeError,
        twin_accused="truly: the issue's cure ends the loop, but float32 holds these times to 2^-17, and steps of 2^-10: the state is off by 0.7 %"),
    Bug("solver-that-says-it-is-done", "cupy/cupy#7512", ("accumulated-drift", "amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: heated(LOW, False), lambda: heated(WIDE, True),
        expected_miss="the solution is right to four roundings of its norm, and its differences lose four bits; that the solver says it is better is "
        "what its user reads into a residual, which is small and has small errors"),
    Bug("rarely-drawn", "rust-random/rand#1476", ("decision-flip", "underflow"), "aten.pow.Tensor_Tensor",
        lambda: drawn(False), lambda: drawn(True), precision="32-true"),
    Bug("letter-by-numpy", "sherjilozair/char-rnn-tensorflow#1", ("amplified-rounding", "dtype-leak", "local-drift"), "aten._softmax.default",
        lambda: letters(LOW), lambda: letters(DOUBLE), raises=ValueError,
        expected_miss="numpy raises, and no op of torch does; it wants a sum that is right to 1.5e-8, which float32 would miss as well"),
)  # fmt: skip
