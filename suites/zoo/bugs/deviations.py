"""Deviations: spread over realizations, curves through near points, counts of unlike size, shapes of a Gamma law, spreads and bands of prices."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Realizations:
    """Properties of a grid's cells, one realization after another, and what is told of each cell over all of them."""

    def __init__(self, cells: int, centred: bool) -> None:
        self.centred, self.seen = centred, []
        self.total, self.squares = torch.zeros(cells), torch.zeros(cells)

    def add(self, values: torch.Tensor) -> None:
        self.seen.append(values)
        self.total = self.total + values
        self.squares = self.squares + values.square()

    def mean(self) -> torch.Tensor:
        return self.total / len(self.seen)

    def deviation(self) -> torch.Tensor:
        count = len(self.seen)
        if self.centred:
            return (torch.stack(self.seen) - self.mean()).square().mean(0).sqrt()
        left = count * self.squares - self.total.square()  # culprit: deviation-of-a-cell
        return left.sqrt() / count  # culprit: deviation-of-a-cell


def cells(centred: bool, level: float = 0.2345, spread: float = 2e-5) -> torch.Tensor:
    """How much the porosity of cells differs between two dozen realizations, which agree on most of the grid. NaN."""
    grid = Realizations(60, centred)
    for turn in range(24):
        free = torch.arange(60) % 6 == 0
        grid.add(level + normal(60, seed=turn) * torch.where(free, 0.05, spread))
    return grid.deviation()


class Process:
    """A smooth curve at random: what is known of it at some places, and how likely what was read there is."""

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        self.scale, self.dtype = scale, dtype

    def covariance(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * ((x[:, None] - x) / self.scale).square())  # culprit: curve-through-near-points

    def log_density(self, x: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        x, read = x.to(self.dtype), read.to(self.dtype)
        root = torch.linalg.cholesky(self.covariance(x))  # culprit: curve-through-near-points
        white = torch.linalg.solve_triangular(root, read[:, None], upper=False)
        return -0.5 * white.square().sum() - root.diagonal().log().sum() - len(x) / 2 * math.log(2 * math.pi)


def curve(dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """How likely readings at nine places are, which are all nearer than a curve changes. Refused."""
    x = torch.linspace(0, 1, 9)
    return Process(scale, dtype).log_density(x, torch.sin(2 * x.double()))


class Variants:
    """How likely so many reads of a site show a variant, where each site has an error rate of its own."""

    def __init__(self, alpha: float, beta: float, near: bool) -> None:
        self.alpha, self.beta, self.near = torch.tensor(alpha), torch.tensor(beta), near

    def between(self, large: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
        """The logarithm of the beta function."""
        if self.near:  # what Stirling's formula has in both Gamma functions of a large number is left out
            whole = large + small
            steep = -(large - 0.5) * torch.log1p(small / large) - small * whole.log() + small
            return torch.lgamma(small) + steep + 1 / (12 * large) - 1 / (12 * whole)
        return torch.lgamma(large) + torch.lgamma(small) - torch.lgamma(large + small)  # culprit: beta-of-unlike-counts

    def log_likelihood(self, reads: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        rest = reads - shown
        ways = -(reads + 1).log() - self.between(rest + 1, shown + 1)
        return ways + self.between(rest + self.beta, shown + self.alpha) - self.between(self.beta, self.alpha)


def variants(near: bool, depth: float = 4e6, beta: float = 3e6) -> torch.Tensor:
    """The log-likelihoods of forty sites that were read millions of times, with some variants each. Garbage."""
    reads = (depth * (1 + uniform(40))).round()
    shown = (12 * uniform(40, seed=1)).round() + 1
    return Variants(4.0, beta, near).log_likelihood(reads, shown)


class Dispersion:
    """The shape of a Gamma law, log-linear in some features, fitted by turns of Fisher scoring."""

    def __init__(self, features: torch.Tensor, series: bool) -> None:
        self.features, self.series = features, series

    def gap(self, shape: torch.Tensor) -> torch.Tensor:
        if self.series:
            return 1 / (2 * shape) + 1 / (12 * shape**2)
        return shape.log() - torch.digamma(shape)  # culprit: information-of-a-shape

    def bend(self, shape: torch.Tensor) -> torch.Tensor:
        if self.series:
            return 1 / (2 * shape**2) + 1 / (6 * shape**3)
        return torch.polygamma(1, shape) - 1 / shape  # culprit: information-of-a-shape

    def fit(self, ratio: torch.Tensor, start: torch.Tensor, turns: int = 3) -> torch.Tensor:
        """`ratio` is what was read over what was expected."""
        told = (ratio - 1) - torch.log1p(ratio - 1)
        rates = start
        for _ in range(turns):
            shape = (self.features @ rates).exp()
            slope = self.features.mT @ (shape * (self.gap(shape) - told))
            known = self.features.mT @ (self.features * (shape.square() * self.bend(shape))[:, None])
            rates = rates + torch.linalg.solve(known, slope)
        return rates


def shapes(series: bool, level: float = 15.0) -> torch.Tensor:
    """How much two features tell of the precision of instruments that err by a two-thousandth. Garbage."""
    features = torch.cat([torch.ones(200, 1), 0.5 * normal(200, 2)], 1)
    truth = torch.tensor([level, 0.4, -0.3])
    ratio = 1 + normal(200, seed=1) * (-0.5 * features @ truth).exp()
    return Dispersion(features, series).fit(ratio.clamp_min(0.05), truth + 0.1)[1:]


class Window:
    """The spread of the last prices, from running sums of all prices and their squares."""

    def __init__(self, size: int, summed: bool) -> None:
        self.size, self.summed = size, summed

    def spread(self, price: torch.Tensor) -> torch.Tensor:
        if not self.summed:
            return price.unfold(0, self.size, 1).std(-1)
        ahead = torch.zeros(1, price.shape[1])
        total = torch.cat([ahead, price.cumsum(0)])
        squares = torch.cat([ahead, price.square().cumsum(0)])  # culprit: spread-of-a-price
        here = total[self.size :] - total[: -self.size]
        mean = here / self.size
        left = squares[self.size :] - squares[: -self.size] - 2 * here * mean + self.size * mean.square()  # culprit: spread-of-a-price
        return (left.abs() / (self.size - 1)).sqrt()


def spreads(summed: bool, level: float = 120.0, step: float = 0.02) -> torch.Tensor:
    """By how many spreads the prices of three shares are off their means of twenty days. Garbage."""
    price = level + (step * normal(900, 3)).cumsum(0)
    mean = price.unfold(0, 20, 1).mean(-1)
    return (price[19:] - mean) / Window(20, summed).spread(price).clamp_min(1e-4)


class Bands:
    """Bands about a price's mean, of two spreads on each side; sums take in each new price and let go of the oldest one."""

    def __init__(self, size: int, centred: bool) -> None:
        self.size, self.centred = size, centred

    def widths(self, price: torch.Tensor) -> torch.Tensor:
        total, squares = price[: self.size - 1].sum(0), price[: self.size - 1].square().sum(0)
        widths = []
        for last in range(self.size - 1, len(price)):
            total = total + price[last]
            squares = squares + price[last].square()
            mean = total / self.size
            here = price[last - self.size + 1 : last + 1]
            varied = (here - mean).square().mean(0) if self.centred else squares / self.size - mean * mean  # culprit: bands-of-a-price
            widths.append(torch.where(varied > 0, varied, 0.0).sqrt())
            total = total - here[0]
            squares = squares - here[0].square()
        return 4 * torch.stack(widths)


def bands(centred: bool, level: float = 5000.0) -> torch.Tensor:
    """How wide the bands of eight prices are, where a day's steps are a ten-thousandth of the price. Garbage."""
    price = level + (0.5 * normal(26, 8)).cumsum(0)
    return Bands(16, centred).widths(price)


EXACT = "32-true"
BUGS = (
    Bug("deviation-of-a-cell", "OPM/ResInsight#14627", ("cancellation", "nan", "amplified-rounding"), "aten.sub.Tensor",
        lambda: cells(False), lambda: cells(True), precision=EXACT),
    Bug("curve-through-near-points", "JuliaGaussianProcesses/Stheno.jl#145", ("amplified-rounding", "unstable-reference", "nan"),
        "aten.exp.default", lambda: curve(SINGLE), lambda: curve(DOUBLE), raises=torch.linalg.LinAlgError, precision=EXACT),
    Bug("beta-of-unlike-counts", "stan-dev/math#1611", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: variants(False), lambda: variants(True), precision=EXACT),
    Bug("information-of-a-shape", "SauersML/gam#4316", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: shapes(False), lambda: shapes(True), precision=EXACT),
    Bug("spread-of-a-price", "polakowo/vectorbt#864", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: spreads(True), lambda: spreads(False), precision=EXACT),
    Bug("bands-of-a-price", "TA-Lib/ta-lib#118", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: bands(False), lambda: bands(True), precision=EXACT),
)  # fmt: skip
