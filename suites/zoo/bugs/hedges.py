"""Hedges: small shares of growth, margins, words that come back, steps of Adam, neighbours, paths of a car."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Discount:
    """What a sum is worth at rates of interest that grow by the second."""

    def __init__(self, stable: bool) -> None:
        self.stable = stable

    def growth(self, rate: torch.Tensor, seconds: torch.Tensor) -> torch.Tensor:
        exponent = rate * seconds
        return exponent.expm1() if self.stable else exponent.exp() - 1  # culprit: growth-by-the-second

    def interest(self, sums: torch.Tensor, rates: torch.Tensor, seconds: torch.Tensor) -> torch.Tensor:
        earned = torch.zeros_like(sums)
        for step in seconds:
            earned = earned + sums * self.growth(rates, step)
        return earned


def earned(stable: bool) -> torch.Tensor:
    """The interest on forty sums over four spans of some seconds, a year's rates given by the second."""
    rates = (0.01 + 0.04 * uniform(40, seed=8001)) / (365 * 86400)
    return Discount(stable).interest(100 + 900 * uniform(40, seed=8002), rates, torch.tensor([3.0, 11.0, 7.0, 20.0]))


class SoftMargin(nn.Module):
    """The soft margin loss, which has a slope even where an answer is right by far."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable = stable

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        powers = torch.exp(-labels * scores)
        return torch.log1p(powers) if self.stable else torch.log(1 + powers)  # culprit: answers-that-are-right-by-far


def margins(stable: bool) -> torch.Tensor:
    """The losses of thirty answers in half, and the mean of those of a second batch, which decides when to stop."""
    torch.manual_seed(8011)
    net, loss = nn.Linear(12, 1).to(HALF), SoftMargin(stable)
    with torch.no_grad():
        net.weight *= 0.5
        net.bias.fill_(9)
        first, second = (loss(net(normal(30, 12, seed=8012 + each).to(HALF)), torch.ones(30, 1, dtype=HALF)).float() for each in range(2))
    return torch.cat([first.flatten(), second.mean()[None]])


class Bloom(nn.Module):
    """Attention whose scores fall with distance, and are masked by the lowest number of the format."""

    def __init__(self, heads: int, bounded: bool) -> None:
        super().__init__()
        torch.manual_seed(8021)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.slope, self.heads, self.bounded = 2.0 ** -torch.arange(1, heads + 1), heads, bounded

    def forward(self, x: torch.Tensor, read: int, allowed: torch.Tensor) -> torch.Tensor:
        """What the last ten words make of the first `read` ones, of each text those that are allowed."""
        query, key, value = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mask = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        far = x.shape[1] - torch.arange(read)
        scores = query[:, :, -10:] @ key[:, :, :read].mT / 2 - (self.slope[:, None, None] * far).to(x.dtype)
        scores = scores + mask[:, None, None]  # culprit: words-that-may-not-be-read
        if self.bounded:
            scores = scores.clamp_min(torch.finfo(x.dtype).min)  # a text that may read nothing reads all alike
        return (scores.softmax(-1) @ value[:, :, :read]).transpose(1, 2).flatten(2)


def attended(bounded: bool) -> torch.Tensor:
    """Two texts of seventy words in half; what the second one could read is padding."""
    allowed = torch.ones(2, 30, dtype=torch.bool)
    allowed[1] = False
    with torch.no_grad():
        return Bloom(4, bounded).to(HALF)(normal(2, 70, 16, seed=8022).to(HALF), 30, allowed).float()


class Adam:
    """Adam with the usual guard, for networks whose floats are all of one kind."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, eps: float) -> None:
        self.parameters, self.rate, self.eps, self.count = parameters, rate, eps, 0
        self.first, self.second = ([torch.zeros_like(each) for each in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        rate = self.rate * math.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            first.mul_(0.9).add_(0.1 * parameter.grad)
            second.mul_(0.999).add_(0.001 * parameter.grad * parameter.grad)  # culprit: racer-in-half
            parameter.sub_(rate * first / (second.sqrt() + self.eps))  # culprit: racer-in-half
            parameter.grad = None


def raced(eps: float) -> torch.Tensor:
    """The steering of a small car by a network in half, after two steps."""
    torch.manual_seed(8031)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)).to(HALF)
    adam = Adam(list(net.parameters()), 1e-3, eps)
    for step in range(2):
        x, wanted = normal(32, 20, seed=8032 + step).to(HALF), 0.2 * normal(32, 2, seed=8042 + step)
        functional.mse_loss(net(x), wanted.to(HALF)).backward()
        adam.step()
    with torch.no_grad():
        return net(normal(8, 20, seed=8052).to(HALF)).float()


class CosineIndex:
    """Finds the nearest of many unit vectors, by one less their product."""

    def __init__(self, vectors: torch.Tensor, halves: bool) -> None:
        self.vectors, self.halves = functional.normalize(vectors, dim=1), halves

    def distances(self, query: torch.Tensor) -> torch.Tensor:
        if self.halves:
            return (self.vectors - query).square().sum(1) / 2
        return 1 - self.vectors @ query  # culprit: items-that-are-nearly-the-same

    def search(self, queries: torch.Tensor, count: int) -> torch.Tensor:
        queries = functional.normalize(queries, dim=1)
        return torch.stack([self.distances(query).topk(count, largest=False)[0] for query in queries])


def searched(halves: bool) -> torch.Tensor:
    """How far the nearest items are from ten that were altered by a ten-thousandth."""
    vectors = normal(120, 64, seed=8061)
    index = CosineIndex(vectors, halves)
    return index.search(vectors[:10] + 1e-4 * normal(10, 64, seed=8062), 1)


class Path:
    """Which way a car has to go along points of a map."""

    def __init__(self, points: list[list[float]], dtype: torch.dtype) -> None:
        self.points = torch.tensor(points, dtype=dtype)  # culprit: path-on-a-map

    def headings(self) -> torch.Tensor:
        steps = self.points[1:] - self.points[:-1]
        return torch.atan2(steps[:, 1], steps[:, 0]).to(SINGLE)

    def curvature(self) -> torch.Tensor:
        steps = (self.points[1:] - self.points[:-1]).norm(dim=1).to(SINGLE)
        return (self.headings()[1:] - self.headings()[:-1]) / steps[1:]


def driven(dtype: torch.dtype) -> torch.Tensor:
    """Headings and curvature of a path near Tokyo, whose points are two metres apart."""
    angles = [0.4 + 0.005 * each for each in range(60)]
    east, north, points = 388_096.3, 3_948_996.7, []
    for angle in angles:
        points.append([east, north])
        east, north = east + 2 * math.cos(angle), north + 2 * math.sin(angle)
    path = Path(points, dtype)
    return torch.cat([path.headings(), path.curvature()])


BUGS = (
    Bug("growth-by-the-second", "tensorflow/tensor2tensor#1424", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: earned(stable=False), lambda: earned(stable=True), precision="32-true"),
    Bug("answers-that-are-right-by-far", "pytorch/pytorch#92145", ("amplified-rounding", "absorption", "underflow"), "aten.add.Tensor",
        lambda: margins(stable=False), lambda: margins(stable=True), module="SoftMargin"),
    Bug("words-that-may-not-be-read", "huggingface/transformers#18185", ("overflow", "nan"), "aten.add.Tensor",
        lambda: attended(bounded=False), lambda: attended(bounded=True)),
    Bug("racer-in-half", "keras-team/keras#11860", ("underflow", "vanished-constant", "nan"), "aten.mul.Tensor",
        lambda: raced(1e-7), lambda: raced(1e-4), phase="data",
        twin_accused="the squares are still subnormal in half, so that the second moments are off by a twentieth"),
    Bug("items-that-are-nearly-the-same", "nmslib/hnswlib#76", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: searched(halves=False), lambda: searched(halves=True), precision="32-true",
        expected_miss="what is chosen is small by choice, and a sum that cancels to less than 2^-17 of its terms is not judged"),
    Bug("path-on-a-map", "autowarefoundation/autoware_universe#3090", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: driven(SINGLE), lambda: driven(DOUBLE), precision="32-true"),
)  # fmt: skip
