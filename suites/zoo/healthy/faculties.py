"""Graphs and clouds: networks under autocast or with float32 masters, and what is iterated or added up over neighbours in float32."""

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


class Propagated(nn.Module):
    """A network's answers, which ten steps of personalised PageRank spread over a graph in float32."""

    def __init__(self, adjacency: torch.Tensor) -> None:
        super().__init__()
        self.inner, self.adjacency = net(10, 24, 3), adjacency

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.inner(x).float()
        out = first
        for _ in range(10):
            out = 0.9 * self.adjacency @ out + 0.1 * first
        return out


def answers_spread_over_a_graph() -> torch.Tensor:
    """APPNP in bfloat16 with float32 masters: neighbours are weighed by roots of degrees in float32."""
    start, end = ring_with_chords(30)
    matrix = torch.eye(30).index_put((end, start), torch.ones(()), accumulate=True)
    scale = matrix.sum(1).rsqrt()
    kind = whole(3, 30, seed=1)
    model = Propagated(scale[:, None] * matrix * scale)
    return trained(model, (normal(30, 10),), lambda out: functional.cross_entropy(out[:12], kind[:12]), "bf16-master")


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


def earth_that_is_moved() -> torch.Tensor:
    """Sinkhorn over logarithms in float32 between two clouds, with a regularisation that shrinks by halves."""
    mine, theirs = normal(24, 2), 0.5 * normal(30, 2, seed=1) + 1
    cost = (mine[:, None] - theirs).square().sum(-1)
    first, second, smooth = torch.zeros(24), torch.zeros(30), 4.0
    while smooth > 0.05:
        for _ in range(8):
            first = -smooth * torch.logsumexp((second - cost) / smooth - torch.log(torch.tensor(30.0)), 1)
            second = -smooth * torch.logsumexp((first[:, None] - cost) / smooth - torch.log(torch.tensor(24.0)), 0)
        smooth /= 2
    return torch.stack([first.mean() + second.mean(), (first[:, None] + second - cost).max()])


class Blocks(nn.Module):
    """Each block of queries reads the two blocks of keys that suit it best, by scores of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(1, (6, 8)).chunk(3, -1)
        best = (q.float().mean(2) @ k.float().mean(2).mT).topk(2, -1).indices
        rows = torch.arange(len(x))[:, None, None]
        near, read = k[rows, best].flatten(2, 3), v[rows, best].flatten(2, 3)
        shares = torch.softmax((q @ near.mT).float() / 4, -1).to(v.dtype)
        return self.head((shares @ read).flatten(1, 2))


def blocks_that_suit() -> torch.Tensor:
    """Sparse attention in half: blocks are chosen by means in float32, and so are the shares."""
    kind = whole(5, 4, 48, seed=3)
    return trained(Blocks(), (normal(4, 48, 16),), lambda out: functional.cross_entropy(out.float().flatten(0, 1), kind.flatten()), "16-mixed")


def noise_that_is_foretold() -> torch.Tensor:
    """Denoising score matching of a plane: the network is bfloat16 with masters, and noise, levels and loss are float32."""
    clean, noise = torch.stack([torch.cos(6.28 * uniform(64)), torch.sin(6.28 * uniform(64))], 1), normal(64, 2, seed=1)
    level = 0.05 * 40 ** uniform(64, 1, seed=2)
    given = torch.cat([(clean + level * noise) / (level.square() + 1).sqrt(), level.log() / 4], 1)
    return trained(net(3, 48, 48, 2, activation=nn.SiLU), (given,), lambda out: (out.float() - noise).square().mean(), "bf16-master")


IDIOMS = (
    pages_by_their_rank, answers_spread_over_a_graph, neighbours_by_four_measures, points_that_push, earth_that_is_moved, blocks_that_suit,
    noise_that_is_foretold,
)  # fmt: skip
EXACT = ("pages_by_their_rank", "earth_that_is_moved")
