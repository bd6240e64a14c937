"""Ranking in a tree: places of words on a hyperbolic disc, a bank of earlier items that grow old, and a loss of whole lists."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
QUERIES, LIST, WIDTH, NODES, BANK, FRESH = 24, 20, 48, 255, 1024, 32


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def places(nodes: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of the nodes of a binary tree, numbered from its root, on a disc: each level is 1.1 further out."""
    depth = torch.floor(torch.log2(nodes.float() + 0.5))
    share = (nodes.float() - 2**depth + 0.5) / 2**depth
    angle = 2 * math.pi * share
    return torch.tanh(0.55 * depth).unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)


def room(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """One less the squared distance to the middle."""
    return 1 - x.square().sum(-1)


def distance(x: torch.Tensor, y: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """On the disc."""
    beyond = 2 * (x - y).square().sum(-1) / (room(x, low) * room(y, low))
    return torch.log1p(beyond + torch.sqrt(beyond * (beyond + 2)))


def flat(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Places of the disc as directions from its middle."""
    length = x.norm(dim=-1, keepdim=True).clamp(1e-6, 1 - 1e-6)
    return torch.atanh(length) * x / length


def freshness(now: torch.Tensor, stored: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What an item of the bank still counts for, by the steps since it was stored."""
    return torch.exp(-(now - stored).float() / 400)


def slots(pointer: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Where the next items go."""
    return (pointer + torch.arange(FRESH)) % BANK


def filled(index: torch.Tensor) -> torch.Tensor:
    """How many of the next items each slot gets."""
    return torch.zeros(BANK).index_add(0, index, torch.ones(len(index)))


def unit(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Items with length one; slots that were never filled are zero."""
    return functional.normalize(x.float(), dim=-1, eps=1e-12)


def apart(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The squared distance of each pair."""
    x = x.float() - x.float().mean(0)  # queries are much alike
    squares = x.square().sum(-1)
    return (squares.unsqueeze(-1) + squares - 2 * x @ x.T).clamp(min=0)


def popularity(counts: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of each item's share of all clicks."""
    return torch.log(counts.float() / counts.sum())


def listwise(scores: torch.Tensor, relevance: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The cost of each list: how unlikely its true order is."""
    order = torch.sort(relevance, dim=-1, descending=True, stable=True).indices
    scores = scores.float().gather(-1, order)
    rest = torch.logcumsumexp(scores.flip(-1), -1).flip(-1)
    return (rest - scores).mean(-1)


def gains(relevance: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return 2.0 ** relevance.float() - 1


class Hierarchy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.item = nn.Sequential(nn.Linear(WIDTH + 2, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.sharp = nn.Parameter(torch.tensor(60.0))

    def forward(
        self, asked: torch.Tensor, items: torch.Tensor, nodes: torch.Tensor, relevance: torch.Tensor, counts: torch.Tensor,
        bank: torch.Tensor, stored: torch.Tensor, now: torch.Tensor, pointer: torch.Tensor,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        weight = self.query[0].weight
        low = low_dtype(weight)
        with torch.autocast(asked.device.type, enabled=False):
            where = places(nodes, low)
            outward = flat(where, low)
            close = distance(where[:, :1], where, low)
        query = self.query(asked.to(weight.dtype))
        item = self.item(torch.cat([items.to(weight.dtype), outward.to(weight.dtype)], -1))
        with torch.autocast(asked.device.type, enabled=False):
            popular = popularity(counts, low)
            mine, theirs, older = unit(query, low), unit(item, low), unit(bank, low)
            scores = self.sharp.float() * (mine.unsqueeze(1) * theirs).sum(-1)
            ranked = listwise(scores - 0.1 * close - 0.1 * popular, relevance, low)
            weights = freshness(now, stored, low)
            against = torch.logsumexp(5 * mine @ older.T + torch.log(weights + 1e-4), -1)
            spread = torch.exp(-2 * apart(mine, low)).mean()
            worth = gains(relevance, low).mean(-1)
            cost = (ranked * worth).mean() + 0.1 * against.mean() + spread
            new = filled(slots(pointer, low))
        return {"loss": cost, "scores": scores, "tree": close, "filled": new, "weights": weights, "popular": popular}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Hierarchy()


def batch() -> dict[str, torch.Tensor]:
    """Lists of nodes of a tree, a bank whose last tenth is empty, and steps of a long run."""
    generator = torch.Generator().manual_seed(11)
    bank = torch.randn(BANK, WIDTH, generator=generator)
    bank[-100:] = 0
    now = torch.tensor(121_533)
    return {
        "asked": 3 * torch.randn(WIDTH, generator=generator) + 0.4 * torch.randn(QUERIES, WIDTH, generator=generator),
        "items": torch.randn(QUERIES, LIST, WIDTH, generator=generator),
        "nodes": torch.randint(1, NODES, (QUERIES, LIST), generator=generator),
        "relevance": torch.randint(0, 5, (QUERIES, LIST), generator=generator),
        "counts": torch.randint(1, 3_000, (QUERIES, LIST), generator=generator),
        "bank": bank,
        "stored": now - torch.randint(1, 2_000, (BANK,), generator=generator),
        "now": now,
        "pointer": torch.tensor(771),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
