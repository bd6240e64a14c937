"""Graphs and chances: networks under autocast or in bfloat16, and neighbours, draws, likelihoods and shares in float32."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def ring_with_chords(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges from each node to the next and to one at random, both ways: where they start, and where they end."""
    here = torch.arange(count).repeat(2)
    there = torch.cat([(torch.arange(count) + 1) % count, whole(count, count, seed=7)])
    return torch.cat([here, there]), torch.cat([there, here])


def pages_by_their_rank() -> torch.Tensor:
    """PageRank in float32: shares of a page flow along its links, and what leaks at its dead ends is spread over all."""
    links = (uniform(40, 40) < 0.08).float()
    links[5] = 0
    degree = links.sum(1)
    flow, ends = links / degree.clamp_min(1)[:, None], degree == 0
    rank = torch.full((40,), 1 / 40)
    for _ in range(60):
        new = 0.85 * (rank @ flow + rank[ends].sum() / 40) + 0.15 / 40
        if (new - rank).abs().sum() < 1e-5:
            break
        rank = new
    return rank / rank.sum()


class Aggregated(nn.Module):
    """Means, largest values and spreads of neighbours, scaled by logarithms of degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = net(16, 12), net(8 + 36, 24, 2)

    def forward(self, x: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        sent = self.message(torch.cat([x[start], x[end]], 1)).float()
        count = torch.zeros(len(x)).index_add(0, end, torch.ones(len(end)))[:, None].clamp_min(1)
        mean = torch.zeros(len(x), 12).index_add(0, end, sent) / count
        spread = (torch.zeros(len(x), 12).index_add(0, end, (sent - mean[end]).square()) / count + 1e-5).sqrt()
        most = torch.full((len(x), 12), -torch.inf).scatter_reduce(0, end[:, None].expand_as(sent), sent, "amax")
        found = torch.cat([mean, most, spread], 1) * torch.log1p(count) / 1.5
        return self.update(torch.cat([x, found], 1))


def neighbours_by_four_measures() -> torch.Tensor:
    """Principal neighbourhood aggregation under autocast: spreads are about the neighbours' own mean, in float32."""
    kind = whole(2, 30, seed=2)
    return trained(Aggregated(), (normal(30, 8), *ring_with_chords(30)), lambda out: functional.cross_entropy(out.float(), kind), "bf16-mixed")


class Moved(nn.Module):
    """Points that push each other along their differences (EGNN); where they are is float32 throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.ModuleList(net(13, 16, 12, seed=seed, activation=nn.SiLU) for seed in range(2))
        self.push = nn.ModuleList(net(12, 16, 1, seed=seed, activation=nn.SiLU) for seed in range(2))
        self.nodes = nn.ModuleList(net(18, 16, 6, seed=seed, activation=nn.SiLU) for seed in range(2))

    def forward(self, known: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        count = place.shape[1]
        for edge, push, node in zip(self.edges, self.push, self.nodes, strict=True):
            away = place[:, :, None] - place[:, None]
            far = away.square().sum(-1, keepdim=True)
            pair = torch.cat([known[:, :, None].expand(-1, -1, count, -1), known[:, None].expand(-1, count, -1, -1), far.to(known.dtype)], -1)
            sent = edge(pair)
            place = place + (away / (far + 1).sqrt() * torch.tanh(push(sent).float())).mean(2)
            known = known + node(torch.cat([known, sent.float().sum(2).to(known.dtype)], -1))
        return place


def points_that_push() -> torch.Tensor:
    """An equivariant network under autocast."""
    place = normal(6, 7, 3)
    wanted = place * 0.9 + 0.1 * normal(6, 7, 3, seed=1)
    return trained(Moved(), (normal(6, 7, 6, seed=2), place), lambda out: (out - wanted).square().mean(), "bf16-mixed")


class Codes(nn.Module):
    """Letters of a code, drawn by Gumbel's noise in float32 at a temperature, and a picture of them."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = net(20, 32, 24), net(24, 32, 20)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        likely = torch.log_softmax(self.read(x).float().unflatten(1, (4, 6)), -1)
        noise = -torch.log(-torch.log(uniform(*likely.shape, seed=4).clamp(1e-6, 1 - 1e-6)))
        drawn = torch.softmax((likely + noise) / 0.7, -1)
        return self.write(drawn.flatten(1).to(x.dtype)), likely


def letters_of_a_code() -> torch.Tensor:
    """A variational network of letters in half: entropies and reconstructions are float32."""
    data = torch.tanh(normal(24, 4) @ normal(4, 20, seed=1))

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        away = (out[0].float() - data).square().sum(1)
        return (away + 0.1 * (out[1].exp() * (out[1] + 1.7918)).sum((1, 2))).mean()

    return trained(Codes(), (data,), loss, "16-mixed")


class Doubtful(nn.Module):
    """Weights that are drawn about their means; spreads are softplus of a parameter near minus three, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(8, 12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spread = functional.softplus(self.spread - 3)
        weight = self.mean + spread * normal(8, 12, seed=6)
        beside = 0.5 * (spread.square() + self.mean.square() - 1) - spread.log()
        return torch.relu(functional.linear(x, weight)).sum(1), beside.sum()


def weights_with_a_doubt() -> torch.Tensor:
    """Bayes by backpropagation under autocast."""
    told = normal(32, seed=1)

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return 0.5 * (out[0].float() - told).square().sum() + 0.01 * out[1]

    return trained(Doubtful(), (normal(32, 12),), loss, "bf16-mixed")


def shocks_that_breed() -> torch.Tensor:
    """The likelihood of a Hawkes process in float32: gaps are taken in float64, before powers of e."""
    gaps = -torch.log(uniform(80).clamp_min(1e-4)).double()
    rates = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([rates], 0.05)
    for _ in range(3):
        base, breed, fade = functional.softplus(rates)
        stirred, told = torch.zeros(()), []
        for gap in gaps.float():
            stirred = stirred * torch.exp(-(fade + 0.5) * gap)
            told.append(torch.log(base + breed * stirred))
            stirred = stirred + 1
        left = 1 - torch.exp(-(fade + 0.5) * (gaps.sum() - gaps.cumsum(0)).float())
        loss = base * gaps.sum().float() + breed / (fade + 0.5) * left.sum() - torch.stack(told).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rates.detach()


def ring_of_remembered_keys() -> torch.Tensor:
    """A ring of sixteen keys and values in bfloat16; a bias by distance is made of integers, and shares are float32."""
    layer = net(16, 48).to(LOW)
    keys, values, places = torch.zeros(16, 2, 8, dtype=LOW), torch.zeros(16, 2, 8, dtype=LOW), torch.full((16,), -1)
    state, slopes, out = normal(16).to(LOW), torch.tensor([0.25, 0.0625]), []
    with torch.no_grad():
        for step in range(40):
            q, k, v = layer(state).unflatten(0, (3, 2, 8))
            keys[step % 16], values[step % 16], places[step % 16] = k, v, step
            scores = torch.einsum("hd,nhd->hn", q.float(), keys.float()) / 8**0.5 - slopes[:, None] * (step - places)
            shares = torch.softmax(scores.masked_fill(places < 0, -torch.inf), -1)
            read = torch.einsum("hn,nhd->hd", shares, values.float()).flatten()
            state = functional.rms_norm(0.5 * state.float() + read + 0.3 * normal(16, seed=step), (16,)).to(LOW)
            out.append(state)
    return torch.stack(out).float()


IDIOMS = (
    pages_by_their_rank, neighbours_by_four_measures, points_that_push, letters_of_a_code, weights_with_a_doubt, shocks_that_breed,
    ring_of_remembered_keys,
)  # fmt: skip
EXACT = ("pages_by_their_rank", "shocks_that_breed")
