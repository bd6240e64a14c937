"""Beliefs: covariances of a tracker, variances of a process near its data, bits of rare symbols, masses between clouds."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class Tracker:
    """A Kalman filter of place, speed and acceleration that sees places alone."""

    def __init__(self, noise: float, symmetric: bool, dtype: torch.dtype) -> None:
        self.noise, self.symmetric = noise, symmetric
        step = 0.5
        self.move = torch.tensor([[1, step, step**2 / 2], [0, 1, step], [0, 0, 1]], dtype=dtype)
        self.jitter = 1e-5 * torch.eye(3, dtype=dtype)
        self.mean, self.spread = torch.zeros(3, dtype=dtype), 1e3 * torch.eye(3, dtype=dtype)

    def predict(self) -> None:
        self.mean = self.move @ self.mean
        self.spread = self.move @ self.spread @ self.move.T + self.jitter

    def see(self, place: torch.Tensor) -> None:
        row = torch.zeros(1, 3, dtype=place.dtype)
        row[0, 0] = 1
        gain = self.spread @ row.T / (row @ self.spread @ row.T + self.noise)
        self.mean = self.mean + gain[:, 0] * (place - self.mean[0])
        rest = torch.eye(3, dtype=place.dtype) - gain @ row  # culprit: spread-of-a-tracker
        if self.symmetric:
            self.spread = rest @ self.spread @ rest.T + self.noise * gain @ gain.T
        else:
            self.spread = rest @ self.spread  # culprit: spread-of-a-tracker


def tracked(symmetric: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """What the filter believes of its first six sights, from knowing nothing to knowing a place to a thirtieth. Off by 5 %."""
    tracker, spreads = Tracker(1e-3, symmetric, dtype), []
    for place in (3 + 0.2 * normal(6)).to(dtype):
        tracker.see(place)
        spreads.append(tracker.spread[0, 0])
        tracker.predict()
    return torch.stack(spreads)


class Process:
    """A Gaussian process of one input, which says how sure it is of its answers."""

    def __init__(self, inputs: torch.Tensor, length: float, noise: float) -> None:
        self.inputs, self.length = inputs, length
        matrix = self.kernel(inputs, inputs) + noise * torch.eye(len(inputs), dtype=inputs.dtype)
        self.root = torch.linalg.cholesky(matrix)

    def kernel(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * ((a[:, None] - b) / self.length) ** 2)

    def variance(self, at: torch.Tensor) -> torch.Tensor:
        across = torch.linalg.solve_triangular(self.root, self.kernel(self.inputs, at), upper=False)  # culprit: variance-near-the-data
        return 1 - across.square().sum(0)  # culprit: variance-near-the-data


def unsure(dtype: torch.dtype) -> torch.Tensor:
    """Variances of a millionth between twelve inputs that lie close to each other. Off by 7 %."""
    process = Process(torch.linspace(0, 3, 12, dtype=DOUBLE).to(dtype), 0.9, 2e-6)
    return process.variance(torch.linspace(0.2, 2.8, 30, dtype=DOUBLE).to(dtype)).float()


class EntropyModel(nn.Module):
    """How many bits each rounded latent costs, by a normal distribution whose mean and scale a network gives."""

    def __init__(self, folded: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.folded = folded
        self.hyper = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 16))

    @staticmethod
    def below(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.erfc(-x / math.sqrt(2))  # culprit: bits-of-rare-symbols

    def forward(self, side: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
        mean, scale = self.hyper(side).chunk(2, -1)
        scale = 0.9 + 0.3 * torch.sigmoid(scale)
        away = symbols - mean
        if self.folded:
            away = -away.abs()
        chance = self.below((away + 0.5) / scale) - self.below((away - 0.5) / scale)  # culprit: bits-of-rare-symbols
        return -torch.log2(chance.clamp_min(1e-12))


def bits(folded: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of symbols some of which are five or six above what was expected. Their cost is off by 40 %."""
    symbols = torch.round(1.5 * normal(20, 8))
    symbols[::5] = 6
    with torch.no_grad():
        return EntropyModel(folded).to(dtype)(normal(20, 6, seed=1).to(dtype), symbols.to(dtype))


class Transport:
    """Entropic transport between clouds of equal weights, by updates of two potentials in the logarithm."""

    def __init__(self, blur: float, turns: int) -> None:
        self.blur, self.turns = blur, turns

    def cost(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        distances = 0.5 * (x[:, :, None] - y[:, None]).square().sum(-1)
        f, g = torch.zeros_like(distances[:, :, 0]), torch.zeros_like(distances[:, 0])
        for _ in range(self.turns):
            f = -self.blur * (torch.logsumexp((g[:, None] - distances) / self.blur, 2) - math.log(y.shape[1]))
            g = -self.blur * (torch.logsumexp((f[:, :, None] - distances) / self.blur, 1) - math.log(x.shape[1]))
        return f.mean(1) + g.mean(1)

    def divergence(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The cost between two clouds, less what each costs to itself."""
        return self.cost(x, y) - 0.5 * (self.cost(x, x) + self.cost(y, y))  # culprit: masses-of-near-clouds


def divergences(dtype: torch.dtype) -> torch.Tensor:
    """Between forty clouds and what they become by moving a few ten-thousandths. Eight of them come out negative."""
    x = 2 * uniform(40, 12, 2).double()
    y = x + 2e-4 * normal(40, 1, 2, seed=1)
    return Transport(0.5, 20).divergence(x.to(dtype), y.to(dtype)).float()


class Matching(nn.Module):
    """Matches the words of two sentences by a plan of transport between what a network makes of them."""

    def __init__(self, sharpness: float, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.sharpness, self.wide = sharpness, wide
        self.project = nn.Linear(10, 8)

    def forward(self, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        a, b = (nn.functional.normalize(wider(self.project(each)) if self.wide else self.project(each), dim=-1) for each in (mine, theirs))
        far = 1 - a @ b.T
        plan = torch.exp(-self.sharpness * far)  # culprit: plan-of-a-sharp-match
        rows, columns = torch.ones(len(far), 1, dtype=far.dtype), torch.ones(1, len(far.T), dtype=far.dtype)
        for _ in range(12):
            rows = 1 / len(far) / (plan * columns).sum(1, keepdim=True)  # culprit: plan-of-a-sharp-match
            columns = 1 / len(far.T) / (plan * rows).sum(0, keepdim=True)  # culprit: plan-of-a-sharp-match
        return rows * plan * columns


def matched(wide: bool) -> torch.Tensor:
    """Of ten words and twelve, one of which is near none of them: no part of its row is above what half holds. NaN."""
    mine, theirs = normal(10, 10).to(HALF), normal(12, 10, seed=1).to(HALF)
    mine[4] = -theirs.sum(0)
    with torch.no_grad():
        return wider(Matching(30.0, wide).to(HALF)(mine, theirs))


BUGS = (
    Bug("spread-of-a-tracker", "NVIDIA/cuml#4259", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: tracked(False), lambda: tracked(True), precision="32-true",
        expected_miss="one less a gain near one is one number of nine, and small beside the others, as the one that is read of what follows is"),
    Bug("variance-near-the-data", "SheffieldML/GPy#253", ("cancellation", "local-drift", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: unsure(SINGLE), lambda: unsure(DOUBLE), precision="32-true"),
    Bug("bits-of-rare-symbols", "tensorflow/compression#116", ("amplified-rounding", "cancellation"), "aten.erfc.default",
        lambda: bits(False), lambda: bits(True), precision="32-true"),
    Bug("masses-of-near-clouds", "jeanfeydy/geomloss#25", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: divergences(SINGLE), lambda: divergences(DOUBLE), precision="32-true"),
    Bug("plan-of-a-sharp-match", "PythonOT/POT#54", ("underflow", "nan", "overflow"), "aten.reciprocal.default",
        lambda: matched(False), lambda: matched(True)),
)  # fmt: skip
