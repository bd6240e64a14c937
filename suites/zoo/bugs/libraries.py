"""Libraries: queries of huge numbers, losses of long lessons, neighbours far from nought, sure readers, ratings of many clicks, marks of pages."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class Index:
    """Vectors as they were given, and the lengths of each, for cosines."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors, self.lengths = vectors, self.length(vectors)

    def length(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors * vectors).sum(-1).sqrt()  # culprit: query-of-huge-numbers

    def search(self, query: torch.Tensor) -> torch.Tensor:
        """The cosine of a query and each vector."""
        return (self.vectors @ query) / (self.lengths * self.length(query))


class ScaledIndex(Index):
    """An index that brings numbers to size one before it squares them."""

    def length(self, vectors: torch.Tensor) -> torch.Tensor:
        largest = vectors.abs().amax(-1, keepdim=True)
        return super().length(vectors / largest) * largest[..., 0]


def found(kind: type[Index]) -> torch.Tensor:
    """How near a query lies to fifty pages, where a client did not scale what its model gave. All are as far."""
    pages = normal(50, 64, seed=431)
    return kind(pages).search(2e19 * (pages[7] + 0.4 * normal(64, seed=432)))


class WordVectors:
    """Vectors of words that learn from pairs, and the loss that is added up for whoever asks."""

    def __init__(self, words: int, size: int, so_far: float, tally: torch.dtype) -> None:
        self.inner, self.outer = normal(words, size, seed=433) / size, 0.3 * normal(words, size, seed=434)
        self.running_loss = torch.tensor(so_far, dtype=tally)

    def train(self, word: int, other: int, rate: float = 0.025) -> None:
        score = (self.inner[word] * self.outer[other]).sum()
        slope = rate * torch.sigmoid(-score)
        inner = self.inner[word].clone()
        self.inner[word] += slope * self.outer[other]
        self.outer[other] += slope * inner
        self.running_loss = self.running_loss + torch.nn.functional.softplus(-score)  # culprit: loss-of-a-late-lesson


def late_loss(tally: torch.dtype) -> torch.Tensor:
    """The loss of one more lesson, after many. Nought."""
    so_far = 134_217_728.0
    vectors = WordVectors(30, 16, so_far, tally)
    for word, other in (30 * uniform(150, 2, seed=435)).long().tolist():
        vectors.train(word, other)
    return vectors.running_loss - so_far


def pairwise_squared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Squared distances of all pairs, by one product."""
    return x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.T  # culprit: places-far-from-nought


def nearest(shifted: bool) -> torch.Tensor:
    """How far each of thirty branches is from its three nearest readers, on the map of a country."""
    origin = torch.tensor([412_500.0, 288_100.0])
    branches, readers = origin + 40 * normal(30, 2, seed=436), origin + 40 * normal(60, 2, seed=437)
    if shifted:
        middle = torch.cat([branches, readers]).mean(0)
        branches, readers = branches - middle, readers - middle
    return pairwise_squared(branches, readers).clamp_min(0).topk(3, largest=False).values.sqrt()


class LogisticGradient:
    """The slope of a logistic loss, one row at a time, added up over rows."""

    def __init__(self, stable: bool) -> None:
        self.stable = stable

    def compute(self, rows: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        margin = -(rows @ weights)
        if self.stable:
            surprise = torch.exp(margin) / (1 + torch.exp(margin))
            factor = torch.where(labels > 0, -surprise, 1 / (1 + torch.exp(margin)))
        else:
            factor = 1 / (1 + torch.exp(margin)) - labels  # culprit: readers-who-are-sure
        return (factor[:, None] * rows).sum(0)


def slopes(stable: bool) -> torch.Tensor:
    """How a model of loans should still change, when it is sure of each and right."""
    rows = 1 + 0.2 * normal(80, 6, seed=438)
    weights = torch.full((6,), 2.8)
    return LogisticGradient(stable).compute(rows, torch.ones(80), weights)


class FactorizationMachine:
    """Pairs of features, by the product of short vectors."""

    def __init__(self, features: int, rank: int) -> None:
        self.vectors = 0.1 * normal(features, rank, seed=439)

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        together, alone = (rows @ self.vectors).square(), rows.square() @ self.vectors.square()
        return 0.5 * (together - alone).sum(-1)

    def slope(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        surprise = torch.exp(-labels * self.predict(rows))  # culprit: clicks-in-hundreds
        factor = -labels * surprise / (1 + surprise)  # culprit: clicks-in-hundreds
        inner = rows @ self.vectors
        return rows.T @ (factor[:, None] * inner) - (rows.square().T @ factor)[:, None] * self.vectors


def clicked(logarithms: bool) -> torch.Tensor:
    """How vectors of thirteen counts should change, from a hundred advertisements. Not a number."""
    counts = torch.exp(1.5 * normal(100, 13, seed=440) + 2).round()
    labels = 2.0 * (uniform(100, seed=441) < 0.3) - 1
    return FactorizationMachine(13, 4).slope(torch.log1p(counts) if logarithms else counts, labels)


def log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of a probability."""
    return -torch.log(torch.exp(-x) + 1)  # culprit: pages-that-are-not-meant


def log_sigmoid_of_size(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_max(0) - torch.log1p(torch.exp(-x.abs()))


def page_loss(stable: bool) -> torch.Tensor:
    """How surprised a model in half is by each of forty pages that were opened, which it thought would not be."""
    hidden, head = normal(40, 32, seed=442).to(HALF), (0.4 * normal(32, seed=443)).to(HALF)
    scores = hidden @ head - 10
    return wider(-(log_sigmoid_of_size if stable else log_sigmoid)(scores))


BUGS = (
    Bug("query-of-huge-numbers", "milvus-io/milvus#50408", ("overflow",), "aten.mul.Tensor",
        lambda: found(Index), lambda: found(ScaledIndex), precision="32-true"),
    Bug("loss-of-a-late-lesson", "piskvorky/gensim#2735", ("absorption", "cancellation"), "aten.add.Tensor",
        lambda: late_loss(SINGLE), lambda: late_loss(DOUBLE), precision="32-true"),
    Bug("places-far-from-nought", "elixir-nx/scholar#354", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: nearest(shifted=False), lambda: nearest(shifted=True), precision="32-true"),
    Bug("readers-who-are-sure", "apache/spark#1652", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: slopes(stable=False), lambda: slopes(stable=True), precision="32-true"),
    Bug("clicks-in-hundreds", "blebreton/spark-FM-parallelSGD#5", ("overflow", "nan"), "aten.exp.default",
        lambda: clicked(logarithms=False), lambda: clicked(logarithms=True), precision="32-true"),
    Bug("pages-that-are-not-meant", "sony/nnabla#845", ("overflow",), "aten.exp.default",
        lambda: page_loss(stable=False), lambda: page_loss(stable=True)),
)  # fmt: skip
