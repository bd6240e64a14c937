"""Statistics, optimizers, trajectories, tables of codes, pairs and waves of atoms: what is gathered, and divided or subtracted afterwards."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, WIDE, DOUBLE = torch.float16, torch.float32, torch.float64


class Statistics(nn.Module):
    """Mean and variance of what an agent has seen, by the parallel formula of Chan; `counted` is how many images were seen before."""

    mean: torch.Tensor
    var: torch.Tensor
    count: torch.Tensor

    def __init__(self, mean: float, var: float, counted: float) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("var", var), ("count", counted)):
            self.register_buffer(name, torch.tensor(value))

    def update(self, images: torch.Tensor) -> None:
        images = images.to(self.mean.dtype)
        new, count = images.mean(), torch.ones_like(self.count)
        total = self.count + count  # culprit: eyes-of-an-agent
        squares = self.var * self.count + images.var() * count + (new - self.mean).square() * self.count * count / total
        self.mean = (self.mean * self.count + new * count) / total  # culprit: eyes-of-an-agent
        self.var = squares / total  # culprit: eyes-of-an-agent
        self.count = total


def normalised(dtype: torch.dtype) -> torch.Tensor:
    """An image as its normaliser sees it after eighty more images: half counts none beyond 2048, so its sums grow. Off by 5 %."""
    statistics = Statistics(0.42, 0.08, 2048.0).to(dtype)
    for seed in range(80):
        statistics.update((uniform(8, 8, seed=seed) * 0.9).to(HALF))
    image = uniform(8, 8, seed=1000).to(HALF).float()
    return (image - statistics.mean.float()) / (statistics.var.float() + 1e-3).sqrt()


class NovoGrad:
    """Gradients of each layer by a running norm of the layer, and their momentum."""

    def __init__(self, layers: list[torch.Tensor], rate: float, wide: bool) -> None:
        self.layers, self.rate, self.wide = layers, rate, wide
        kind = WIDE if wide else layers[0].dtype
        self.squares = [torch.zeros((), dtype=kind) for _ in layers]
        self.momenta = [torch.zeros_like(layer, dtype=kind) for layer in layers]

    @torch.no_grad()
    def step(self, gradients: list[torch.Tensor]) -> None:
        for place, gradient in enumerate(gradients):
            g = gradient.float() if self.wide else gradient
            self.squares[place] = 0.98 * self.squares[place] + 0.02 * (g * g).sum()  # culprit: norm-of-a-quiet-layer
            self.momenta[place] = 0.9 * self.momenta[place] + g / (self.squares[place].sqrt() + 1e-8)  # culprit: norm-of-a-quiet-layer
            self.layers[place].sub_((self.rate * self.momenta[place]).to(gradient.dtype))


def stepped(wide: bool) -> torch.Tensor:
    """A layer of half weights after five steps, whose gradients are 4e-5: their squares are nought, and so is their norm. Inf."""
    layer = (0.1 * normal(16, 16)).to(HALF)
    optimizer = NovoGrad([layer], 1e-3, wide)
    for seed in range(1, 6):
        optimizer.step([(4e-5 * normal(16, 16, seed=seed)).to(HALF)])
    return layer.float()


def merged(chances: torch.Tensor, same: torch.Tensor, count: int) -> torch.Tensor:
    """Log chances of actions of which several lead to the same state: they are added up, state by state."""
    sums = torch.zeros(len(chances), count, dtype=chances.dtype)
    return sums.scatter_add(1, same, chances.exp()).log()  # culprit: actions-that-are-one


def flows(dtype: torch.dtype) -> torch.Tensor:
    """Log chances of thirty states from a policy in half, some of which are below e^-18. Inf."""
    logits = 4 * normal(12, 60).to(HALF)
    logits[:, 0] = 15
    return merged(torch.log_softmax(logits.float(), -1).to(dtype), torch.arange(60).expand(12, -1) % 30, 30).float()


class CodeTables:
    """Distances of a query to the codes of each part of a vector, looked up and added for every vector of an index."""

    def __init__(self, query: torch.Tensor, books: torch.Tensor, sums: torch.dtype) -> None:
        self.tables, self.sums = (query[:, None] - books).square().sum(-1).to(HALF), sums

    def nearest(self, codes: torch.Tensor, count: int) -> torch.Tensor:
        total = torch.zeros(len(codes), dtype=self.sums)
        for part, table in enumerate(self.tables):
            total = total + table[codes[:, part]]  # culprit: tables-of-large-vectors
        return total.topk(count, largest=False).values.float()


def searched(sums: torch.dtype) -> torch.Tensor:
    """The ten nearest of a thousand vectors of 64 parts, whose distances are near a hundred thousand and are added up in half. Inf."""
    query, books = 15 * normal(64, 4), 15 * normal(64, 16, 4, seed=1)
    return CodeTables(query, books, sums).nearest((16 * uniform(1000, 64)).long(), 10)


def separations(chords: torch.Tensor, by_cosine: bool) -> torch.Tensor:
    """Angles between pairs of galaxies, in seconds of arc, from the chords between them on a sphere of radius one."""
    if by_cosine:
        cosine = 1 - 0.5 * chords.square()  # culprit: pairs-of-galaxies
        return torch.acos(cosine) * 206264.8  # culprit: pairs-of-galaxies
    return 2 * torch.asin(0.5 * chords) * 206264.8


def pairs(by_cosine: bool) -> torch.Tensor:
    """Separations of pairs up to ten minutes; float32 has cosines near one at steps of 71 seconds. Off by 8 %."""
    return separations(10 ** (-4.5 + 2 * uniform(300)), by_cosine)


def second_wave(x: torch.Tensor, by_series: bool) -> torch.Tensor:
    """The spherical Bessel function of order two."""
    if by_series:
        square = x * x
        return square / 15 * (1 - square / 14 * (1 - square / 36 * (1 - square / 66)))
    return (3 / (x * x) - 1) * torch.sin(x) / x - 3 * torch.cos(x) / (x * x)  # culprit: waves-of-near-atoms


def waves(by_series: bool) -> torch.Tensor:
    """Waves of order two between atoms, at products of distance and wave number below a fifth, in float32. Off by 67 %."""
    return second_wave(0.01 + 0.2 * uniform(200), by_series)


BUGS = (
    Bug("eyes-of-an-agent", "facebookresearch/habitat-lab#578", ("absorption", "integer-rounding", "accumulated-drift"), "aten.add.Tensor",
        lambda: normalised(HALF), lambda: normalised(WIDE)),
    Bug("norm-of-a-quiet-layer", "google-deepmind/optax#1789", ("vanished-constant", "underflow", "overflow"), "aten.add.Tensor",
        lambda: stepped(False), lambda: stepped(True)),
    Bug("actions-that-are-one", "recursionpharma/gflownet#48", ("underflow", "overflow"), "aten.exp.default", lambda: flows(HALF),
        lambda: flows(WIDE)),
    Bug("tables-of-large-vectors", "NVIDIA/cuvs#2246", ("overflow", "accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: searched(HALF), lambda: searched(WIDE)),
    Bug("pairs-of-galaxies", "manodeep/Corrfunc#296", ("amplified-rounding", "cancellation"), "aten.rsub.Scalar", lambda: pairs(True),
        lambda: pairs(False), precision="32-true"),
    Bug("waves-of-near-atoms", "deepmodeling/abacus-develop#2676", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: waves(False), lambda: waves(True), precision="32-true"),
)  # fmt: skip
