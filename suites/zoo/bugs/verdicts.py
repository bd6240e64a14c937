"""Verdicts: losses whose focus is soft, parts that explain a picture, counts of visits, texts by perplexity, hidden places."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

LOW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


class FocalLoss(nn.Module):
    """A cross entropy that weighs what is sure already less."""

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        log_chance = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
        chance = log_chance.exp()
        return (-((1 - chance) ** self.gamma) * log_chance).mean()  # culprit: gradient-of-a-sure-class


def focal_gradient(kind: torch.dtype) -> torch.Tensor:
    """The gradient of forty scores, some of which are sure. NaN."""
    scores = (9 * normal(40, 5, seed=31)).to(kind).requires_grad_()
    FocalLoss(0.5)(scores, scores.detach().argmax(-1)).backward()
    return scores.grad


class Capsules(nn.Module):
    """Parts, each of which says where points should be; how likely points are, whichever part they belong to."""

    def __init__(self, parts: int, kind: torch.dtype) -> None:
        super().__init__()
        self.places = nn.Parameter(normal(parts, 2, seed=32).to(kind))
        self.spread = nn.Parameter(torch.full((parts,), 0.12, dtype=kind))
        self.weight = nn.Parameter(torch.zeros(parts, dtype=kind))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        apart = ((points[:, None] - self.places) / self.spread[:, None]).square().sum(-1)
        logarithm = -0.5 * apart - 2 * self.spread.log() - math.log(2 * math.pi)
        chance = torch.exp(logarithm) * self.weight.softmax(0)  # culprit: points-that-no-part-explains
        return chance.sum(-1).log().mean()  # culprit: points-that-no-part-explains


def explained(kind: torch.dtype) -> tuple[torch.Tensor, ...]:
    """How the places of parts should move for points to be likelier, and how likely these are. Not at all."""
    parts = Capsules(6, kind)
    likely = parts(1.5 * normal(30, 2, seed=33).to(kind))
    return likely, *torch.autograd.grad(likely, [parts.places])


def local_fit(kind: torch.dtype, careful: bool) -> torch.Tensor:
    """How well a model of counts fits each of forty places, weighed by how near it is. Infinitely badly."""
    rates = 20 + 30 * uniform(40, seed=34).to(kind)
    counts = (rates + 3 * normal(40, seed=35).to(kind)).round()
    if careful:
        factorials = torch.lgamma(counts + 1)
    else:
        factorials = torch.exp(torch.lgamma(counts + 1)).log()  # culprit: counts-of-visits
    fits = counts * rates.log() - rates - factorials
    apart = (torch.arange(40)[:, None] - torch.arange(40)).to(kind)
    near = torch.exp(-0.5 * (apart / 4) ** 2)
    return (near @ fits) / near.sum(-1)


class Speaker(nn.Module):
    """A model that says which of some words comes next."""

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(131)
        self.embed, self.mix, self.head = nn.Embedding(words, size), nn.Linear(size, size), nn.Linear(size, words)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(text))))


def loss_per_text(logits: torch.Tensor, text: torch.Tensor, low: bool) -> torch.Tensor:
    """The mean loss of each text's words."""
    told, wanted = logits[:, :-1].reshape(-1, logits.shape[-1]), text[:, 1:].reshape(-1)
    losses = nn.functional.cross_entropy(told if low else told.float(), wanted, reduction="none")  # culprit: texts-by-perplexity
    return losses.view(len(text), -1).sum(-1) / (text.shape[1] - 1)  # culprit: texts-by-perplexity


def perplexities(low: bool) -> torch.Tensor:
    """By how much the perplexity of each of twelve texts differs from their mean. Most are the same."""
    words = 200
    text = (words * uniform(12, 41, seed=36)).long()
    logits = Speaker(words, 16).to(LOW)(text).detach()
    told = torch.exp(loss_per_text(logits, text, low))  # culprit: texts-by-perplexity
    return wider(told) - wider(told).mean()


class Hidden:
    """Draws of a process at places that are not known but for their mean."""

    def __init__(self, width: float, jitter: float, kind: torch.dtype) -> None:
        self.width, self.jitter, self.kind = width, jitter, kind

    def covariance(self, places: torch.Tensor) -> torch.Tensor:
        apart = (places[:, None] - places) / self.width  # culprit: process-without-jitter
        return torch.exp(-0.5 * apart**2) + self.jitter * torch.eye(len(places), dtype=self.kind)  # culprit: process-without-jitter

    def draw(self, places: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(self.covariance(places)) @ normal(len(places), seed=37).to(self.kind)  # culprit: process-without-jitter


def drawn(kind: torch.dtype, jitter: float) -> torch.Tensor:
    """A draw at thirty places. It is refused."""
    return Hidden(0.15, jitter, kind).draw(torch.linspace(0, 2, 30, dtype=kind))


BUGS = (
    Bug("gradient-of-a-sure-class", "clcarwin/focal_loss_pytorch#13", ("cancellation", "nan", "overflow", "underflow"), "aten.rsub.Scalar",
        lambda: focal_gradient(SINGLE), lambda: focal_gradient(DOUBLE), module="FocalLoss", precision="32-true"),
    Bug("points-that-no-part-explains", "mlberkeley/scae-pytorch#4", ("underflow", "overflow"), "aten.exp.default",
        lambda: explained(SINGLE), lambda: explained(DOUBLE), module="Capsules", precision="32-true"),
    Bug("counts-of-visits", "lbb220/GWmodel#1", ("overflow",), "aten.exp.default",
        lambda: local_fit(SINGLE, careful=False), lambda: local_fit(SINGLE, careful=True), precision="32-true"),
    Bug("texts-by-perplexity", "allenai/open-instruct#649", ("amplified-rounding", "cancellation"), "aten.div.Tensor",
        lambda: perplexities(low=True), lambda: perplexities(low=False)),
    Bug("process-without-jitter", "GPflow/GPflow#467", ("amplified-rounding", "cancellation", "nan"), "aten.sub.Tensor",
        lambda: drawn(SINGLE, 0.0), lambda: drawn(SINGLE, 1e-4), precision="32-true", raises=torch.linalg.LinAlgError),
)  # fmt: skip
