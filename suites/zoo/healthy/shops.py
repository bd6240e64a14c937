"""Ranking, recommending and deciding: models under autocast or with float32 masters, and counts, inverses and likelihoods where they are exact enough."""

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


class Crossed(nn.Module):
    """Crosses of features, layer by layer, beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.cross, self.head = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for layer in self.cross:
            x = x + first * layer(x)
        return self.head(x)


def clicks_by_crosses() -> torch.Tensor:
    """A cross network in bfloat16 with float32 masters, and its loss in float32."""
    clicked = (uniform(40, 1, seed=2) < 0.3).float()
    return trained(Crossed(), (0.5 * normal(40, 16),), lambda out: functional.binary_cross_entropy_with_logits(out.float(), clicked), "bf16-master")


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


class NextItem(nn.Module):
    """Causal attention over what was bought, with the items' own table as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places, self.mix, self.norm = nn.Embedding(40, 16), nn.Embedding(12, 16), nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, bought: torch.Tensor, good: torch.Tensor, bad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.items(bought) + self.places(torch.arange(bought.shape[1]))
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, 1, 16)).permute(2, 0, 3, 1, 4)
        x = self.norm(x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return (x * self.items(good)).sum(-1), (x * self.items(bad)).sum(-1)


def next_thing_to_buy() -> torch.Tensor:
    """One good and one bad item for each place, in bfloat16 with masters."""
    data = whole(40, 8, 12), whole(40, 8, 12, seed=1), whole(40, 8, 12, seed=2)
    return trained(NextItem(), data, lambda pair: functional.softplus(pair[1].float() - pair[0].float()).mean(), "bf16-master")


def tastes_by_turns() -> torch.Tensor:
    """Alternating least squares for clicks: normal matrices by products in float32, solved by Cholesky in float64."""
    seen = (uniform(30, 20) < 0.2).float() * (1 + 9 * uniform(30, 20, seed=1))
    users, items = 0.3 * normal(30, 6), 0.3 * normal(20, 6, seed=2)
    for _ in range(4):
        for mine, theirs, clicks in ((users, items, seen), (items, users, seen.T)):
            weights = 4 * clicks
            both = theirs.T @ theirs + torch.einsum("ui,ik,il->ukl", weights, theirs, theirs) + 0.5 * torch.eye(6)
            wanted = ((1 + weights) * (clicks > 0)) @ theirs
            mine.copy_(torch.cholesky_solve(wanted.double()[..., None], torch.linalg.cholesky(both.double())).squeeze(-1).float())
    return users @ items.T


def arms_by_their_bounds() -> torch.Tensor:
    """LinUCB: inverses by the formula of Sherman and Morrison in float64, over features of a network in bfloat16."""
    network, truth = net(5, 16, 6).to(LOW), normal(3, 6, seed=4)
    inverse, wanted = torch.eye(6, dtype=DOUBLE).repeat(3, 1, 1), torch.zeros(3, 6, dtype=DOUBLE)
    for step in range(30):
        with torch.no_grad():
            x = torch.tanh(network(normal(5, seed=step).to(LOW)).float()).double()
        beside = inverse @ x
        best = int(((wanted * beside).sum(-1) + 0.5 * (beside @ x).clamp_min(0).sqrt()).argmax())
        reward = float(truth[best].double() @ x) + 0.1 * float(normal(1, seed=step + 100))
        inverse[best] -= torch.outer(beside[best], beside[best]) / (1 + beside[best] @ x)
        wanted[best] += reward * x
    return torch.einsum("akl,al->ak", inverse, wanted).float()


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


def beams_of_equal_right() -> torch.Tensor:
    """A beam search over a model in half: sums of log-probabilities and their means over the length are float32."""
    table, layer = net(8, 32, 20).to(HALF), 0.7 * normal(20, 8, seed=1)
    beams, scores, state = torch.zeros(4, 1, dtype=torch.long), torch.tensor([0.0, -1e9, -1e9, -1e9]), torch.zeros(4, 8)
    for _ in range(10):
        state = torch.tanh(0.5 * state + layer[beams[:, -1]])
        with torch.no_grad():
            likely = torch.log_softmax(table(state.to(HALF)).float(), -1)
        scores, place = (scores[:, None] + likely).flatten().topk(4)
        beam, word = place // 20, place % 20
        beams, state = torch.cat([beams[beam], word[:, None]], 1), state[beam]
    return scores / beams.shape[1] ** 0.6


IDIOMS = (
    ranks_that_matter, orders_by_their_likelihood, clicks_by_pairs_of_fields, clicks_by_crosses, interest_in_a_history,
    tasks_by_their_uncertainty, next_thing_to_buy, tastes_by_turns, arms_by_their_bounds, chosen_words_of_a_sampler, beams_of_equal_right,
)  # fmt: skip
EXACT = ("clicks_by_pairs_of_fields", "tastes_by_turns")
