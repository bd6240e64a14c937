"""Gauges: spreads under a window, scores of generators, nearest of far vectors, intervals of a quantiser, clusters, motifs and saves."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Focal:
    """What is under a window that moves over a map: its mean and how much it varies."""

    def __init__(self, size: int, centred: bool) -> None:
        self.size, self.centred = size, centred

    def mean(self, grid: torch.Tensor) -> torch.Tensor:
        kernel = torch.full((1, 1, self.size, self.size), 1 / self.size**2, dtype=grid.dtype)
        return torch.conv2d(grid[None, None], kernel)[0, 0]

    def deviation(self, grid: torch.Tensor) -> torch.Tensor:
        if self.centred:
            return grid.unfold(0, self.size, 1).unfold(1, self.size, 1).flatten(2).std(-1, correction=0)
        squares = self.mean(grid * grid)  # culprit: roughness-of-a-highland
        return (squares - self.mean(grid).square()).clamp_min(0).sqrt()  # culprit: roughness-of-a-highland


def roughness(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of a highland at 2500 metres, which is rough by half a metre. Garbage."""
    return Focal(3, centred).deviation((2500 + 0.5 * normal(20, 20)).to(dtype))


class Statistics:
    """The mean and the covariances of what a network sees in pictures, as they are kept in a file."""

    def __init__(self, features: torch.Tensor, kept: torch.dtype) -> None:
        centred = features - features.mean(0)
        self.mean = features.mean(0).to(kept)  # culprit: score-from-a-file
        self.covariance = (centred.T @ centred / len(features)).to(kept)  # culprit: score-from-a-file


def root_trace(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(a)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    return torch.linalg.eigvalsh(root @ b @ root).clamp_min(0).sqrt().sum()


def frechet(real: Statistics, made: Statistics) -> torch.Tensor:
    means = wider(real.mean) - wider(made.mean)
    a, b = wider(real.covariance), wider(made.covariance)
    traces = a.diagonal().sum() + b.diagonal().sum()  # culprit: score-from-a-file
    return means.square().sum() + traces - 2 * root_trace(a, b)  # culprit: score-from-a-file


def score_from_a_file(kept: torch.dtype) -> torch.Tensor:
    """Scores of eight good generators, whose features differ by four thousandths from those of the pictures. Off by 3 %."""
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12))
    with torch.no_grad():
        seen = 1.5 + network(normal(400, 12)).double()
        real = Statistics(seen, kept)
        made = (seen * (1 + 0.004 * normal(1, 12, seed=10 + i)) + 0.001 * normal(1, 12, seed=30 + i) for i in range(8))
        return torch.stack([frechet(real, Statistics(each, kept)) for each in made]).float()


class Cells:
    """An index of vectors by the nearest of a few centres."""

    def __init__(self, centres: torch.Tensor, direct: bool) -> None:
        self.centres, self.direct = centres, direct

    def assign(self, vectors: torch.Tensor) -> torch.Tensor:
        if self.direct:
            return (vectors[:, None] - self.centres).square().sum(-1).argmin(1)
        norms = self.centres.square().sum(1)  # culprit: cells-of-far-vectors
        return (norms - 2 * vectors @ self.centres.T).argmin(1)  # culprit: cells-of-far-vectors

    def fill(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.bincount(self.assign(vectors), minlength=len(self.centres)).float()


def cells(direct: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How many of 600 vectors fall to each of twelve centres, all of them far from nought. Garbage."""
    centres, vectors = 3000 + normal(12, 3), 3000 + normal(600, 3, seed=1)
    return Cells(centres.to(dtype), direct).fill(vectors.to(dtype))


class Intervals:
    """Divides sorted numbers into intervals such that they lie close to their means, by sums over all of them before."""

    def __init__(self, numbers: torch.Tensor, origin: float) -> None:
        zero = torch.zeros(1, dtype=numbers.dtype)
        self.origin, told = origin, numbers - origin
        self.sums = torch.cat([zero, torch.cumsum(told, 0)])  # culprit: intervals-of-a-quantiser
        self.squares = torch.cat([zero, torch.cumsum(told * told, 0)])  # culprit: intervals-of-a-quantiser

    def cost(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        total, count = self.sums[last] - self.sums[first], (last - first).clamp_min(1)
        return self.squares[last] - self.squares[first] - total * total / count  # culprit: intervals-of-a-quantiser

    def divide(self, parts: int) -> torch.Tensor:
        """The least cost of the first so many numbers in that many parts."""
        n = len(self.sums)
        ends, starts = torch.arange(n)[:, None], torch.arange(n)[None]
        single = torch.where(starts < ends, self.cost(starts, ends), torch.inf)
        best = single[:, 0]
        for _ in range(parts - 1):
            best = (best + single).amin(1)
        return best[-1:]


def divided(origin: float, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Sixty weights about 300 in six parts. Off by 35 %."""
    numbers = 300 + torch.sort(normal(60, seed=2)).values
    return Intervals(numbers.to(dtype), origin).divide(6)


class Lloyd:
    """Finds the middles of clusters, of points and sums in one format."""

    def __init__(self, middles: torch.Tensor) -> None:
        self.middles = middles

    def turn(self, points: torch.Tensor) -> None:
        nearest = (points[:, None].float() - self.middles.float()).square().sum(-1).argmin(1)
        sums = torch.zeros_like(self.middles).index_add_(0, nearest, points.to(self.middles.dtype))  # culprit: middles-of-large-clusters
        ones = torch.ones(len(points), dtype=sums.dtype)
        members = torch.zeros_like(sums[:, 0]).index_add_(0, nearest, ones)  # culprit: middles-of-large-clusters
        self.middles = sums / members.clamp_min(1)[:, None]


def middles(dtype: torch.dtype) -> torch.Tensor:
    """Three clusters of 3000 points each. Off by 46 %."""
    at = torch.tensor([[0.8, 0.3], [-0.5, 0.9], [0.2, -1.1]])
    points = (at.repeat(3000, 1) + 0.2 * normal(9000, 2)).to(HALF)
    lloyd = Lloyd(points[:3].to(dtype))
    for _ in range(3):
        lloyd.turn(points)
    return wider(lloyd.middles)


class Sampler(nn.Module):
    """Leaves a head's best tokens and draws among them."""

    def __init__(self, kept: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.kept, self.wide = kept, wide
        self.head = nn.Linear(16, 2000)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)  # culprit: first-of-many-tokens
        if self.wide:
            logits = nn.functional.linear(hidden.float(), self.head.weight.float(), self.head.bias.float())
        least = logits.topk(self.kept, -1).values[:, -1:]
        return torch.softmax(logits.float().masked_fill(logits < least, -torch.inf), -1)  # culprit: first-of-many-tokens


def first_token(wide: bool) -> torch.Tensor:
    """The one best token of 100 states. In bfloat16 some have two that are best, and either is drawn. Off by half."""
    sampler = Sampler(1, wide).to(LOW)
    with torch.no_grad():
        return sampler((0.4 * normal(100, 16)).to(LOW))


class Windows:
    """The energy of each window of a record, by which motifs are made comparable."""

    def __init__(self, length: int, direct: bool) -> None:
        self.length, self.direct = length, direct

    def energies(self, record: torch.Tensor) -> torch.Tensor:
        windows = record.unfold(0, self.length, 1)
        if self.direct:
            return windows.square().sum(-1)
        energy = windows[0].square().sum()
        energies = [energy]
        for left, taken in zip(record, record[self.length :], strict=False):
            energy = energy - left**2 + taken**2  # culprit: energies-after-a-storm
            energies.append(energy)
        return torch.stack(energies)


def calm_energies(direct: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of windows of a sensor's record after a storm of forty samples, ten thousand times as strong. Garbage."""
    record = normal(260)
    record[40:80] *= 1e4
    return Windows(16, direct).energies(record.to(dtype))[100:]


class Simulation:
    """Cells that eat what diffuses to them. It saves what it looks like at times that are told beforehand."""

    def __init__(self, start: float, step: float, every: float, counts: bool, dtype: torch.dtype) -> None:
        self.step, self.every, self.counts, self.turn = step, every, counts, 0
        self.time, self.next = torch.tensor(start, dtype=dtype), torch.tensor(start, dtype=dtype)
        self.food, self.saved = torch.linspace(1, 2, 20, dtype=dtype), []

    def due(self) -> bool:
        if self.counts:
            return self.turn % round(self.every / self.step) == 0
        return bool((self.time - self.next).abs() < 0.01 * self.step)  # culprit: saves-of-a-long-run

    def run(self, turns: int) -> torch.Tensor:
        for _ in range(turns):
            if self.due():
                self.saved.append(self.food.mean())
                self.next = self.next + self.every  # culprit: saves-of-a-long-run
            flow = torch.nn.functional.pad(self.food.diff(), (1, 1))
            self.food = self.food + 0.2 * flow.diff() - 0.01 * self.food
            self.time, self.turn = self.time + self.step, self.turn + 1  # culprit: saves-of-a-long-run
        return torch.stack(self.saved + [self.saved[-1] * 0] * (20 - len(self.saved)))


def saves(counts: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Fifteen pictures of 150 steps, after two weeks of minutes. It saves one."""
    return Simulation(20_160.0, 0.1, 1.0, counts, dtype).run(150)


BUGS = (
    Bug("roughness-of-a-highland", "xarray-contrib/xarray-spatial#2831", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: roughness(False), lambda: roughness(True), precision="32-true"),
    Bug("score-from-a-file", "openai/guided-diffusion#166", ("cancellation", "amplified-rounding"), "aten._to_copy.default",
        lambda: score_from_a_file(HALF), lambda: score_from_a_file(SINGLE),
        expected_miss="covariances are rounded in one function, which keeps them, and cancel in another: each of eight scores is a single number"),
    Bug("cells-of-far-vectors", "ClickHouse/ClickHouse#119117", ("cancellation", "decision-flip", "amplified-rounding"), "aten.sub.Tensor",
        lambda: cells(False), lambda: cells(True), precision="32-true",
        expected_miss="told as a warning: two thirds of the vectors choose otherwise, but the centres may be as near to each other as that"),
    Bug("intervals-of-a-quantiser", "facebookresearch/faiss#5619", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: divided(0.0), lambda: divided(300.0), precision="32-true"),
    Bug("middles-of-large-clusters", "src-d/kmcuda#34", ("local-drift", "absorption", "accumulated-drift"), "aten.index_add_.default",
        lambda: middles(HALF), lambda: middles(SINGLE)),
    Bug("first-of-many-tokens", "vllm-project/tpu-inference#3580", ("decision-flip", "amplified-rounding"), "aten.lt.Tensor",
        lambda: first_token(False), lambda: first_token(True),
        expected_miss="three rows of a hundred have two that are best, and fewer than five rows are left to chance"),
    Bug("energies-after-a-storm", "stumpy-dev/stumpy#1180", ("amplified-rounding", "cancellation", "absorption"), "aten.sub.Tensor",
        lambda: calm_energies(False), lambda: calm_energies(True), precision="32-true"),
    Bug("saves-of-a-long-run", "MathCancer/PhysiCell#288", ("decision-flip", "absorption", "accumulated-drift", "cancellation"), "aten.lt.Scalar",
        lambda: saves(False), lambda: saves(True), precision="32-true",
        expected_miss="that it is not time yet is a decision of Python, once; the run that follows never compares such times again"),
)  # fmt: skip
