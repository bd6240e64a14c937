"""Odds, ranks and ways: a divergence of twins, an alignment in order, odds of sure answers, ranks of scores, the way weights have gone."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """Jensen and Shannon's divergence of two distributions for each token, from their logits."""
    mine, theirs = functional.log_softmax(student, -1), functional.log_softmax(teacher, -1)  # culprit: divergence-of-twins
    mixture = torch.logsumexp(torch.stack([mine + math.log(1 - beta), theirs + math.log(beta)]), 0)  # culprit: divergence-of-twins
    first = (theirs.exp() * (theirs - mixture)).sum(-1)  # culprit: divergence-of-twins
    second = (mine.exp() * (mine - mixture)).sum(-1)  # culprit: divergence-of-twins
    return beta * first + (1 - beta) * second


def distilled(single: bool) -> torch.Tensor:
    """Losses of 32 tokens of a student that has come close to its teacher; the heads run under autocast, or in float32."""
    hidden, head = normal(32, 24), normal(400, 24, seed=1) / 2
    with torch.autocast("cpu", LOW, enabled=not single):
        student, teacher = hidden @ head.T, (hidden + 0.06 * normal(32, 24, seed=2)) @ head.T
    return divergence(student, teacher).float()


def safe_cumprod(x: torch.Tensor) -> torch.Tensor:
    """Products of all numbers before each, by logarithms."""
    logarithms = torch.log(x.clamp(torch.finfo(torch.float32).tiny, 1.0))  # culprit: alignment-in-order
    return functional.pad(torch.exp(torch.cumsum(logarithms, -1)), (1, -1), value=1.0)


class MonotonicAttention(nn.Module):
    """Each step attends where the step before did, or further on."""

    def __init__(self, width: int, single: bool) -> None:
        super().__init__()
        self.query, self.single = nn.Linear(width, width, bias=False), single
        with torch.no_grad():
            self.query.weight.copy_(normal(width, width) / width**0.5)

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        energies = self.query(states) @ memory.T
        energies = energies.float() if self.single else energies
        attention = functional.pad(torch.ones_like(energies[:1, :1]), (0, len(memory) - 1))
        rows = []
        for energy in energies:
            chosen = torch.sigmoid(energy - 1)
            left = safe_cumprod(1 - chosen)  # culprit: alignment-in-order
            attention = chosen * left * torch.cumsum(attention / left.clamp(1e-10, 1.0), -1)  # culprit: alignment-in-order
            rows.append(attention)
        return torch.cat(rows)


def spoken(single: bool) -> torch.Tensor:
    """Attention of ten decoder steps to 24 encoder states under autocast in half."""
    states, memory = normal(10, 16, seed=1), 0.7 * normal(24, 16, seed=2)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return MonotonicAttention(16, single)(states, memory).float()


def log_odds(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """The logarithm of the ratio of two answers' odds, from their mean logarithms of probabilities."""
    others = torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))  # culprit: odds-of-sure-answers
    return (chosen - rejected) - others


def preferred(dtype: torch.dtype) -> torch.Tensor:
    """Odds of 40 pairs of answers of 12 tokens, by a model in bfloat16 that knows most of the tokens."""
    targets = torch.arange(12) % 50

    def mean_log_probability(boost: torch.Tensor, seed: int) -> torch.Tensor:
        logits = 0.5 * normal(40, 12, 50, seed=seed)
        logits[:, torch.arange(12), targets] += boost[:, None]
        log_probabilities = functional.log_softmax(logits.to(LOW).to(dtype), -1)  # culprit: odds-of-sure-answers
        return log_probabilities[:, torch.arange(12), targets].mean(-1)  # culprit: odds-of-sure-answers

    return log_odds(mean_log_probability(7 + 4 * uniform(40), 1), mean_log_probability(5 + uniform(40, seed=5), 2)).float()


def rank_data(scores: torch.Tensor) -> torch.Tensor:
    """The rank of each score among all."""
    ranks = torch.empty_like(scores)
    ranks[scores.argsort(stable=True)] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)  # culprit: ranks-in-the-scores-format
    return ranks


def ranked(dtype: torch.dtype) -> torch.Tensor:
    """How far each of 900 answers moves between the ranks that two reward models in bfloat16 give."""
    first = normal(900).to(LOW)
    second = (first.float() + 0.05 * normal(900, seed=1)).to(LOW)
    return (rank_data(first.to(dtype)) - rank_data(second.to(dtype))).float()


class Prodigy:
    """Steps whose length grows with how far the weights have come, as the gradients see it."""

    def __init__(self, weight: torch.Tensor, first: float) -> None:
        self.weight, self.start, self.length = weight, weight.clone(), first
        self.moment, self.square, self.sum = (torch.zeros_like(weight, dtype=WIDE) for _ in range(3))
        self.numerator, self.first = 0.0, first

    def step(self, gradient: torch.Tensor) -> None:
        way = torch.dot(gradient.float().flatten(), (self.start - self.weight).float().flatten())  # culprit: way-of-the-weights
        self.numerator = 0.97 * self.numerator + (self.length / self.first) * self.length * float(way)
        self.moment.mul_(0.9).add_(gradient.float(), alpha=0.1 * self.length)
        self.square.mul_(0.97).addcmul_(gradient.float(), gradient.float(), value=0.03 * self.length**2)
        self.sum.mul_(0.97).add_(gradient.float(), alpha=(self.length / self.first) * self.length)
        self.length = max(self.length, self.numerator / float(self.sum.abs().sum().clamp_min(1e-30)))
        step = self.length * self.moment / (self.square.sqrt() + self.length * 1e-8)
        self.weight.sub_(step.to(self.weight.dtype))  # culprit: way-of-the-weights


def prodigious(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Where forty steps lead that start with 1e-4, and the length that they have reached, for weights in bfloat16."""
    weight, goal = (0.5 + 0.2 * normal(16, 12)).to(LOW).to(dtype), normal(16, 12, seed=1)
    optimizer, start = Prodigy(weight, 1e-4), weight.float().clone()
    for step in range(40):
        batch = normal(32, 12, seed=10 + step)
        error = batch @ (weight.float() - goal).T
        optimizer.step(error.T @ batch / 32)
    return weight.float() - start, torch.tensor(optimizer.length)


BUGS = (
    Bug("divergence-of-twins", "linkedin/Liger-Kernel#336", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: distilled(False),
        lambda: distilled(True)),
    Bug("alignment-in-order", "r9y9/tacotron_pytorch#8", ("underflow", "vanished-constant", "nan", "cancellation", "overflow"), "aten.div.Tensor",
        lambda: spoken(False), lambda: spoken(True)),
    Bug("odds-of-sure-answers", "huggingface/trl#5339", ("amplified-rounding", "cancellation", "overflow"), "aten.exp.default",
        lambda: preferred(LOW), lambda: preferred(WIDE)),
    Bug("ranks-in-the-scores-format", "Lightning-AI/torchmetrics#3466", ("integer-rounding",), "aten.arange.start", lambda: ranked(LOW),
        lambda: ranked(WIDE)),
    Bug("way-of-the-weights", "bghira/SimpleTuner#1294", ("absorption", "lost-update", "accumulated-drift"), "aten.sub_.Tensor",
        lambda: prodigious(LOW), lambda: prodigious(WIDE)),
)  # fmt: skip
