"""Retrieval by two towers: a user's history and a shop's items as vectors, the other items of the batch as negatives, corrected by how
often they come up, and a share of the score by how recent an item is."""

from __future__ import annotations

import math

import torch
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
ITEMS, SHOPS, WIDTH, USERS, HISTORY, TEMPERATURE, DRAWS = 3000, 12, 32, 96, 20, 0.05, 50_000_000


def table_rows(items: torch.Tensor, shops: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The row of a table that holds every shop's items, one shop after another."""
    return (shops * (ITEMS // SHOPS) + items).long()


def ages(now: torch.Tensor, added: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How many days ago an item came into the shop, from seconds since 1970."""
    return ((now - added) / 86400.0).float()


def log_chances(seen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The logarithm of how often an item comes up among the negatives."""
    return torch.log(seen.float() / DRAWS).float()


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Of length one; a user without a history stays zero."""
    wide = vectors.float()
    return (wide / wide.norm(dim=-1, keepdim=True).clamp_min(1e-8)).to(vectors.dtype)


def in_batch_losses(scores: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """The softmax loss of each user's own item against all items of the batch."""
    scores = scores.float() - chances
    return (torch.logsumexp(scores, 1) - scores.diagonal()).float()


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.user = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.item = nn.Sequential(nn.Linear(WIDTH + 2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(
        self, history: torch.Tensor, items: torch.Tensor, shops: torch.Tensor, now: torch.Tensor, added: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        like = self.user[2](self.user[1](self.user[0](self.items.weight[:1])))
        known = (history >= 0).unsqueeze(-1)
        past = (self.items(history.clamp_min(0)) * known).sum(1) / known.sum(1).clamp_min(1)
        users = self.user(past)
        users = users * known.any(1).to(users.dtype)
        days = ages(now, added, like)
        fresh = torch.stack([torch.exp(-days / 7), torch.exp(-days / 60)], -1).to(past.dtype)
        chosen = self.item(torch.cat([self.items(table_rows(items, shops, like)), fresh], -1))
        with torch.autocast(users.device.type, enabled=False):
            scores = unit(users) @ unit(chosen).T / TEMPERATURE
            return in_batch_losses(scores, log_chances(seen, like)) * known.any(1).squeeze(-1)


def make() -> nn.Module:
    torch.manual_seed(0)
    return TwoTowers()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    history = torch.randint(ITEMS, (USERS, HISTORY), generator=generator)
    history[torch.rand(USERS, HISTORY, generator=generator) < 0.2] = -1
    history[5] = -1
    now = 1_760_000_000 + torch.randint(100, (USERS,), generator=generator)
    return {
        "history": history,
        "items": torch.randint(ITEMS // SHOPS, (USERS,), generator=generator),
        "shops": torch.randint(SHOPS, (USERS,), generator=generator),
        "now": now,
        "added": now - (86400 * 30 * torch.rand(USERS, generator=generator)).long(),
        "seen": torch.exp(math.log(1e5) * torch.rand(USERS, generator=generator)).long() + 1,
    }


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


optimizer = None
