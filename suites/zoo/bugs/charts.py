"""Charts: ranks of pages, maps of neighbours, ranks of rare words, matches that agree, samples with weights, scores of ensembles."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Web:
    """Pages on a ring, each of which links to some of its near neighbours: the farther a page, the more clicks away it is."""

    def __init__(self, pages: int, reach: int, links: int) -> None:
        self.pages = pages
        steps = (uniform(pages, links, seed=3) * 2 * reach - reach).round().long()
        steps = torch.where(steps == 0, torch.ones_like(steps), steps)
        self.source = torch.arange(pages)[:, None].expand(-1, links).flatten()
        self.target = ((torch.arange(pages)[:, None] + steps) % pages).flatten()
        self.out = torch.full((pages,), float(links))

    def away(self, page: int) -> torch.Tensor:
        """How far each page is from one of them, around the ring."""
        far = (torch.arange(self.pages) - page).abs()
        return torch.minimum(far, self.pages - far)


class Surfer:
    """Clicks at random, and now and then returns to where it began; a page's rank is how often it is there."""

    def __init__(self, web: Web, keeps: float, dtype: torch.dtype) -> None:
        self.web, self.keeps, self.dtype = web, keeps, dtype
        self.share = (keeps / web.out).to(dtype)

    def start(self, page: int) -> torch.Tensor:
        rank = torch.zeros(self.web.pages, dtype=self.dtype)
        rank[page] = 1
        return rank

    def click(self, rank: torch.Tensor, home: torch.Tensor) -> torch.Tensor:
        sent = (rank * self.share)[self.web.source]  # culprit: ranks-of-far-pages
        return ((1 - self.keeps) * home).index_add(0, self.web.target, sent)  # culprit: ranks-of-far-pages

    def ranks(self, page: int, turns: int) -> torch.Tensor:
        home = self.start(page)
        rank = home.clone()
        for _ in range(turns):
            rank = self.click(rank, home)
        return rank


def related(dtype: torch.dtype, keeps: float = 0.5, near: int = 30, far: int = 60) -> torch.Tensor:
    """The logarithms of the ranks of pages some clicks away from one, by which they are suggested. Infinite."""
    web = Web(240, 5, 8)
    ranks = Surfer(web, keeps, dtype).ranks(0, 40)
    away = web.away(0)
    return wider(ranks[(away >= near) & (away < far)]).log()


class Neighbours:
    """How likely each point takes each other one for its neighbour, such that it has a wanted number of them."""

    def __init__(self, wanted: float, nearest: bool, turns: int = 40) -> None:
        self.wanted, self.nearest, self.turns = math.log(wanted), nearest, turns

    def weights(self, distance: torch.Tensor, sharp: torch.Tensor) -> torch.Tensor:
        if self.nearest:
            distance = distance - distance.amin(1, keepdim=True)
        weight = torch.exp(-distance * sharp)  # culprit: neighbours-of-many-features
        total = weight.sum(1, keepdim=True)
        return weight / torch.where(total == 0, torch.full_like(total, 1e-8), total)

    def search(self, distance: torch.Tensor) -> torch.Tensor:
        """Halves, row by row, the range of how sharp the rows must be."""
        rows = len(distance)
        low, high = torch.zeros(rows, 1, dtype=distance.dtype), torch.full((rows, 1), torch.inf, dtype=distance.dtype)
        sharp = torch.ones(rows, 1, dtype=distance.dtype)
        for _ in range(self.turns):
            likely = self.weights(distance, sharp)
            spread = -torch.where(likely > 0, likely * likely.clamp_min(1e-38).log(), torch.zeros_like(likely)).sum(1, keepdim=True)
            wide = spread > self.wanted
            low, high = torch.where(wide, sharp, low), torch.where(wide, high, sharp)
            sharp = torch.where(high.isinf(), sharp * 2, (low + high) / 2)
        return self.weights(distance, sharp)


def neighbours(nearest: bool, own: float = 10.0, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A map of forty points in two dimensions, after some steps towards near neighbours and away from others. Garbage.

    Each point has a feature of its own, like a word that one text alone has.
    """
    points = torch.cat([own * torch.eye(40), 0.6 * normal(40, 12, seed=4)], 1).to(dtype)
    distance = (points[:, None] - points[None]).square().sum(-1)
    others = ~torch.eye(40, dtype=torch.bool)
    likely = Neighbours(8.0, nearest).search(distance[others].view(40, 39))
    whole = torch.zeros(40, 40, dtype=dtype)
    whole[others] = likely.flatten()
    whole = (whole + whole.T) / 80
    place = (0.01 * normal(40, 2, seed=5)).to(dtype)
    for _ in range(12):
        apart = place[:, None] - place[None]
        pull = 1 / (1 + apart.square().sum(-1))
        pull = pull * others
        slope = 4 * ((4 * whole - pull / pull.sum()) * pull)[..., None] * apart
        place = place - 20 * slope.sum(1)
    return place


class RareWords(nn.Module):
    """Tells a word from some that are drawn by their rank: a word of rank r as often as log((r + 2) / (r + 1)) says."""

    def __init__(self, words: int, ratio: bool) -> None:
        super().__init__()
        torch.manual_seed(34)
        self.words, self.ratio, self.table = words, ratio, nn.Embedding(64, 16)

    def often(self, rank: torch.Tensor) -> torch.Tensor:
        if self.ratio:
            return torch.log1p(1 / (rank + 1)) / math.log(self.words + 1)
        return (torch.log(rank + 2) - torch.log(rank + 1)) / math.log(self.words + 1)  # culprit: ranks-of-rare-words

    def forward(self, told: torch.Tensor, rank: torch.Tensor, drawn: int) -> torch.Tensor:
        scores = (told * self.table(torch.arange(len(rank)))).sum(-1)
        return scores - (drawn * self.often(rank)).clamp_min(1e-30).log()


def rare_words(ratio: bool, words: int = 8_000_000, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """The scores of forty words of a large vocabulary, corrected by how often they are drawn. Garbage."""
    rank = torch.linspace(words / 4, words - 2, 40, dtype=DOUBLE).round().to(dtype)
    with torch.no_grad():
        return RareWords(words, ratio).to(dtype)(normal(40, 16).to(dtype), rank, 8192)


def matches(dtype: torch.dtype, pictures: int = 400) -> torch.Tensor:
    """How well a classifier's answers agree with the truth, by the coefficient of Matthews. Nought."""
    torch.manual_seed(35)
    net = nn.Linear(12, 1).to(dtype)
    seen = normal(pictures, 12).to(dtype)
    with torch.no_grad():
        score = net(seen).squeeze(-1)
        said = (score > 0).to(dtype)
        true = (score + 0.3 * normal(pictures, seed=1).to(dtype) > 0).to(dtype)
        both, neither = (said * true).sum(), ((1 - said) * (1 - true)).sum()
        wrong, missed = (said * (1 - true)).sum(), ((1 - said) * true).sum()
        sizes = (both + wrong) * (both + missed) * (neither + wrong) * (neither + missed)  # culprit: coefficient-of-matches
        return wider((both * neither - wrong * missed) / sizes.sqrt())[None]


class Machine:
    """Units that are on or off, moved such that they are on as often as in samples, each of which has a weight."""

    def __init__(self, units: int, dtype: torch.dtype) -> None:
        self.field, self.dtype = torch.zeros(units, dtype=dtype), dtype

    def mean(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x * weight[:, None]).sum(0) / weight.sum()  # culprit: weights-of-many-samples

    def learn(self, x: torch.Tensor, weight: torch.Tensor, turns: int) -> None:
        for turn in range(turns):
            told = slice(turn * 20, turn * 20 + 20)
            model = torch.sigmoid(self.field)
            share = (weight[told].mean() / weight.mean()).to(self.dtype)
            self.field = self.field + 0.2 * share * (self.mean(x[told], weight[told]) - model)


def weighed(dtype: torch.dtype, samples: int = 70_000) -> torch.Tensor:
    """How often each of four units is on in samples with weights near one, and a field that was learnt. The first is nought."""
    x = (uniform(samples, 4, seed=6) > 0.3).to(dtype)
    weight = (0.9 + 0.2 * uniform(samples, seed=7)).to(dtype)
    machine = Machine(4, dtype)
    machine.learn(x, weight, 6)
    return torch.cat([wider(machine.mean(x, weight)), wider(machine.field)])


class Ensemble:
    """Scores forecasts of many members by how far their distribution is from what came."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide

    def score(self, members: torch.Tensor, came: torch.Tensor) -> torch.Tensor:
        """Of members in order: how far they are from what came, and the moments of their ranks."""
        if self.wide:
            members, came = wider(members), wider(came)
        count = members.shape[-1]
        sorted_, _ = members.sort(-1)
        far = (sorted_ - came[..., None]).abs().mean(-1)
        first = sorted_.mean(-1)
        rank = torch.arange(count, dtype=members.dtype) / (count * (count - 1))
        second = (sorted_ * rank).sum(-1)
        return far + first - 2 * second  # culprit: scores-of-an-ensemble


def ensemble(wide: bool, base: float = 21.0, dtype: torch.dtype = HALF) -> torch.Tensor:
    """The scores of forecasts of temperatures of thirty places by twenty members. Off by 5 %."""
    members = (base + normal(30, 1, seed=8) + 0.15 * normal(30, 20, seed=9)).to(dtype)  # culprit: scores-of-an-ensemble
    came = (base + normal(30, seed=8) + 0.15 * normal(30, seed=10)).to(dtype)
    return wider(Ensemble(wide).score(members, came))


BUGS = (
    Bug("ranks-of-far-pages", "networkx/networkx#3276", ("underflow",), "aten.mul.Tensor",
        lambda: related(HALF), lambda: related(SINGLE)),
    Bug("neighbours-of-many-features", "scikit-learn/scikit-learn#19471", ("underflow",), "aten.exp.default",
        lambda: neighbours(False), lambda: neighbours(True), precision="32-true"),
    Bug("ranks-of-rare-words", "apache/mxnet#9747", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: rare_words(False), lambda: rare_words(True), precision="32-true"),
    Bug("coefficient-of-matches", "haifengl/smile#879", ("overflow",), "aten.mul.Tensor",
        lambda: matches(HALF), lambda: matches(SINGLE), phase="data"),
    Bug("weights-of-many-samples", "cossio/RestrictedBoltzmannMachines.jl#212", ("overflow",), "aten.sum.default",
        lambda: weighed(HALF), lambda: weighed(SINGLE)),
    Bug("scores-of-an-ensemble", "arviz-devs/arviz-stats#271", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: ensemble(False), lambda: ensemble(True)),
)  # fmt: skip
