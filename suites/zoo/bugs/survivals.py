"""Chances that are small: patients of low risk, maps of p, nested volumes, a sure direction, many dimensions, symbols that are far."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def partial_likelihoods(log_hazard: torch.Tensor, events: torch.Tensor, built_in: bool) -> torch.Tensor:
    """Cox's partial likelihood of each event, of patients that are sorted from the longest time to the shortest."""
    if built_in:
        at_risk = torch.logcumsumexp(log_hazard.float(), 0)
        return (at_risk - log_hazard.float())[events]
    largest = log_hazard.max()
    at_risk = (log_hazard - largest).exp().cumsum(0).log() + largest  # culprit: patients-of-low-risk
    return (at_risk - log_hazard)[events].float()


def survival(built_in: bool) -> torch.Tensor:
    """Losses of 90 patients by a head in half; those who live longest have the least risk, and the last are in great danger."""
    head = nn.Linear(8, 1)
    with torch.no_grad():
        head.weight.copy_(normal(1, 8) / 4)
        head.bias.zero_()
        head.half()
        hidden = normal(90, 8, seed=1) + 2.2 * torch.linspace(-1, 1, 90)[:, None] * normal(1, 8).sign()
        log_hazard = 2 * head(hidden.to(HALF)).squeeze(-1)
        return partial_likelihoods(log_hazard, uniform(90, seed=2) < 0.7, built_in)


def chance_beyond(z: torch.Tensor, complementary: bool) -> torch.Tensor:
    """The chance that a normal number is further from zero than z."""
    if complementary:
        return torch.erfc(z.abs() / math.sqrt(2))
    below = (1 + torch.erf(z.abs() / math.sqrt(2))) / 2  # culprit: maps-of-p
    return 2 * (1 - below)  # culprit: maps-of-p


def meta_analysis(complementary: bool) -> torch.Tensor:
    """Fisher's statistic of six studies for each voxel of a map, some of which are active in all of them."""
    active = 2.5 * (normal(64) > 0.8)
    z = normal(6, 64, seed=1) + active + torch.linspace(0, 0.8, 6)[:, None] * active
    return -2 * chance_beyond(z, complementary).log().sum(0)


class NestedRun:
    """Points of nested sampling in the order in which they died, with the logarithm of the share of the volume that each left."""

    def __init__(self, log_shares: torch.Tensor, log_likelihood: torch.Tensor) -> None:
        self.log_shares, self.log_likelihood = log_shares, log_likelihood

    def log_weights(self, direct: bool) -> torch.Tensor:
        """Logarithms of likelihood times the shell of volume that each point stands for."""
        log_volume = self.log_shares.cumsum(0)
        before = log_volume - self.log_shares
        if direct:
            return self.log_likelihood + before + torch.log(-torch.expm1(self.log_shares))
        before = torch.cat([torch.zeros(1), log_volume[:-1]])
        inner = log_volume - before  # culprit: volumes-of-a-nested-run
        return self.log_likelihood + before + torch.log(-torch.expm1(inner))  # culprit: volumes-of-a-nested-run


def evidence(direct: bool) -> torch.Tensor:
    """Weights of the last two hundred of 20000 points of a run of 50000 live ones, whose first shell is all that died before them."""
    log_shares = torch.log1p(-uniform(20000)) / 50000
    log_shares[0] -= 35
    found = NestedRun(log_shares, torch.linspace(-20, 0, 20000)).log_weights(direct)[-200:]
    return (found - found.max()).exp()


class DirectionHead(nn.Module):
    """The loss of a direction, of which a network says the angle and how sure it is of it, by the distribution of von Mises."""

    def __init__(self, width: int, scaled: bool) -> None:
        super().__init__()
        self.head, self.scaled = nn.Linear(width, 3), scaled

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        y, x, sure = self.head(hidden).unbind(-1)
        away, sure = seen - torch.atan2(y, x), functional.softplus(sure)
        if self.scaled:
            away, sure = away.float(), sure.float()
            return math.log(2 * math.pi) + torch.log(torch.special.i0e(sure)) + sure * (1 - away.cos())
        return math.log(2 * math.pi) + torch.log(torch.special.i0(sure)) - sure * away.cos()  # culprit: direction-that-is-sure


def directions(scaled: bool) -> torch.Tensor:
    """Losses of 48 joints by a head in half that is right to a few degrees."""
    model = DirectionHead(8, scaled)
    with torch.no_grad():
        model.head.weight.copy_(normal(3, 8) / 16)
        model.head.bias.copy_(torch.tensor([0.5, 0.8, 18.0]))
        return model.half()(normal(48, 8, seed=1).to(HALF), (0.56 + 0.1 * normal(48, seed=2)).to(HALF)).float()


class Speakers(nn.Module):
    """Gaussians of voices, each with a mean and with variances, and the chance of each voice for an embedding."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, voices: int, width: int, by_logarithms: bool) -> None:
        super().__init__()
        self.by_logarithms = by_logarithms
        self.register_buffer("mean", normal(voices, width) / 4)
        self.register_buffer("variance", 0.1 + 0.3 * uniform(voices, width, seed=1))

    def forward(self, voice: torch.Tensor) -> torch.Tensor:
        mean, variance = self.mean, self.variance
        if self.by_logarithms:
            voice, mean, variance = voice.float(), mean.float(), variance.float()
        squares = ((voice[:, None] - mean).square() / variance).sum(-1)
        if self.by_logarithms:
            return torch.softmax(-(squares + variance.log().sum(-1)) / 2, -1)
        determinant = variance.prod(-1)  # culprit: components-of-many-dimensions
        return torch.softmax(-(squares + determinant.log()) / 2, -1)


def spoken(by_logarithms: bool) -> torch.Tensor:
    """Which of four voices spoke, by embeddings of sixteen numbers, by a model that is cast to half."""
    model = Speakers(4, 16, by_logarithms).half()
    return model((normal(20, 16, seed=2) / 2).to(HALF)).float()


class SymbolPrior(nn.Module):
    """How many bits a symbol costs, by a logistic distribution of which a network says place and width."""

    def __init__(self, width: int, mirrored: bool) -> None:
        super().__init__()
        self.head, self.mirrored = nn.Linear(width, 2), mirrored

    def forward(self, hidden: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
        place, width = self.head(hidden).unbind(-1)
        if self.mirrored:
            place, width = place.float(), width.float()
        scale, symbols = functional.softplus(width), symbols.to(place.dtype)
        upper, lower = (symbols + 0.5 - place) / scale, (symbols - 0.5 - place) / scale
        if self.mirrored:
            side = -torch.sign(upper + lower)
            chance = (torch.sigmoid(side * upper) - torch.sigmoid(side * lower)).abs()
        else:
            chance = torch.sigmoid(upper) - torch.sigmoid(lower)  # culprit: symbols-that-are-far
        return -torch.log2(chance.clamp_min(1e-9))


def coded(mirrored: bool) -> torch.Tensor:
    """Bits of 60 latents of a picture, by a prior under autocast, some of which are larger than it thinks."""
    model = SymbolPrior(8, mirrored)
    with torch.no_grad():
        model.head.weight.copy_(normal(2, 8) / 8)
        model.head.bias.copy_(torch.tensor([0.3, 0.6]))
        with torch.autocast("cpu", LOW):
            return model(normal(60, 8, seed=1), (4 + 3 * normal(60, seed=2)).round()).float()


BUGS = (
    Bug("patients-of-low-risk", "havakv/pycox#144", ("underflow",), "aten.exp.default", lambda: survival(False), lambda: survival(True),
        phase="data"),
    Bug("maps-of-p", "neurostuff/NiMARE#1069", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: meta_analysis(False),
        lambda: meta_analysis(True), precision="32-true"),
    Bug("volumes-of-a-nested-run", "handley-lab/blackjax#68", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: evidence(False),
        lambda: evidence(True), precision="32-true"),
    Bug("direction-that-is-sure", "JuliaStats/Distributions.jl#818", ("overflow",), "aten.i0.default", lambda: directions(False),
        lambda: directions(True)),
    Bug("components-of-many-dimensions", "manifoldai/merf#6", ("underflow",), "aten.prod.dim_int", lambda: spoken(False), lambda: spoken(True),
        module="Speakers"),
    Bug("symbols-that-are-far", "InterDigitalInc/CompressAI#23", ("amplified-rounding", "cancellation"), "aten.sub.Tensor", lambda: coded(False),
        lambda: coded(True)),
)  # fmt: skip
