"""Ranking, recommending and deciding: models under autocast or with float32 masters, and counts and inverses in a format that holds them."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def ranks_that_matter() -> torch.Tensor:
    """LambdaRank: pairs of documents are weighed by what their exchange changes, with gains and discounts in float32."""
    grades = whole(5, 6, 10, seed=1)
    gains = torch.exp2(grades.float()) - 1
    ideal = (gains.sort(-1, descending=True).values / torch.log2(torch.arange(2.0, 12))).sum(-1)[:, None, None]

    def loss(out: torch.Tensor) -> torch.Tensor:
        scores = out.squeeze(-1).float()
        discount = 1 / torch.log2(scores.detach().argsort(-1, descending=True).argsort(-1) + 2.0)
        change = ((gains[:, :, None] - gains[:, None]) * (discount[:, :, None] - discount[:, None])).abs() / ideal
        above = grades[:, :, None] > grades[:, None]
        return -(functional.logsigmoid(scores[:, :, None] - scores[:, None]) * change)[above].mean()

    return trained(net(12, 32, 1), (normal(6, 10, 12),), loss, "bf16-mixed")


def orders_by_their_likelihood() -> torch.Tensor:
    """Plackett and Luce: the log of what is left of each list, as a cumulative log-sum-exp in float32 from its end."""

    def loss(out: torch.Tensor) -> torch.Tensor:
        scores = out.squeeze(-1).float()
        left = scores.flip(-1).logcumsumexp(-1).flip(-1)
        return (left - scores).sum(-1).mean()

    return trained(net(10, 24, 1), (normal(8, 14, 10),), loss, "16-mixed")


class Factors(nn.Module):
    """A factorisation machine: pairs of fields by the square of their sum less the sum of their squares."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.weight = nn.Embedding(80, 8), nn.Embedding(80, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        known = self.table(ids).float()
        pairs = 0.5 * (known.sum(1).square() - known.square().sum(1)).sum(-1)
        return pairs + self.weight(ids).float().sum((1, 2))


def clicks_by_pairs_of_fields() -> torch.Tensor:
    """Six fields in float32, so that a pair's product is a third of the squares that it is taken from."""
    clicked = (uniform(40, seed=1) < 0.3).float()
    ids = whole(13, 40, 6) + 13 * torch.arange(6)
    return trained(Factors(), (ids,), lambda out: functional.binary_cross_entropy_with_logits(out, clicked), "32-true")


class Interest(nn.Module):
    """Attention of a candidate over a history with gaps, which are given no weight at all."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.score, self.head = nn.Embedding(50, 12), net(36, 16, 1), net(24, 16, 1)

    def forward(self, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        past, asked = self.items(history), self.items(item)[:, None]
        scores = self.score(torch.cat([past, asked.expand_as(past), past * asked], -1)).squeeze(-1)
        there = history > 0
        weights = torch.softmax(scores.float().masked_fill(~there, -1e9), -1) * there
        read = (weights[..., None] * past.float()).sum(1)
        return self.head(torch.cat([read.to(past.dtype), asked[:, 0]], -1)).squeeze(-1)


def interest_in_a_history() -> torch.Tensor:
    """Weights of a history in float32; one user has none, and all of its weights are nought."""
    history = whole(50, 16, 9) * (uniform(16, 9, seed=1) < 0.7)
    history[3] = 0
    bought = (uniform(16, seed=2) < 0.5).float()
    inputs = history, whole(49, 16, seed=3) + 1
    return trained(Interest(), inputs, lambda out: functional.binary_cross_entropy_with_logits(out.float(), bought), "16-mixed")


class TwoTasks(nn.Module):
    """Two heads, and how unsure each is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = net(10, 32, 16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.unsure = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = torch.relu(self.body(x))
        return self.first(known), self.second(known), self.unsure


def tasks_by_their_uncertainty() -> torch.Tensor:
    """Two losses by exp(-s), and s itself, in float32."""
    value, kind = normal(30, 1, seed=1), whole(3, 30, seed=2)

    def loss(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
        away, wrong = (out[0].float() - value).square().mean(), functional.cross_entropy(out[1].float(), kind)
        return 0.5 * torch.exp(-out[2][0]) * away + torch.exp(-out[2][1]) * wrong + 0.5 * out[2].sum()

    return trained(TwoTasks(), (normal(30, 10),), loss, "bf16-mixed")


def chosen_words_of_a_sampler() -> torch.Tensor:
    """Repetition, temperature, min-p and top-p on logits of a network in bfloat16, which are float32 from the head on."""
    network, state, told = net(12, 32, 40).to(LOW), normal(4, 12), whole(40, 4, 3, seed=5)
    draws, out = torch.Generator().manual_seed(3), []
    for _ in range(12):
        with torch.no_grad():
            logits = 3 * network(state.to(LOW)).float()
        seen = torch.zeros(4, 40).scatter_(1, told, 1.0).bool()
        logits = torch.where(seen, torch.where(logits > 0, logits / 1.2, logits * 1.2), logits) / 0.8
        shares, order = torch.softmax(logits, -1).sort(-1, descending=True)
        shares = shares.masked_fill((shares.cumsum(-1) - shares > 0.9) | (shares < 0.02 * shares[:, :1]), 0.0)
        chosen = order.gather(1, torch.multinomial(shares, 1, generator=draws))
        out.append(torch.log_softmax(logits, -1).gather(1, chosen))
        told, state = torch.cat([told, chosen], 1), torch.tanh(state + 0.3 * torch.sin(chosen.float() + torch.arange(12)))
    return torch.cat(out, 1)


IDIOMS = (
    ranks_that_matter, orders_by_their_likelihood, clicks_by_pairs_of_fields, interest_in_a_history, tasks_by_their_uncertainty,
    chosen_words_of_a_sampler,
)  # fmt: skip
EXACT = ("clicks_by_pairs_of_fields",)
