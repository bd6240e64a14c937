"""A recommender: bags of what a user has watched, a factorisation machine, click probabilities, and retrieval by sampled softmax."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
USERS, ITEMS, CONTEXTS, WIDTH, DENSE, HISTORY, NEGATIVES = 48, 400, 30, 16, 12, 9000, 24
INTERACTIONS = 2_000_000_000


def pooled(rows: torch.Tensor, user: torch.Tensor, column: int) -> torch.Tensor:
    """The sum over each user's history of one column of the table: how often and how strongly it was clicked."""
    rows = rows.float()
    return torch.zeros(USERS, dtype=rows.dtype, device=rows.device).index_add(0, user, rows[:, column])


def bag_means(rows: torch.Tensor, user: torch.Tensor) -> torch.Tensor:
    """The mean embedding of each user's history."""
    lengths = torch.bincount(user, minlength=USERS).clamp(min=1)
    sums = torch.stack([pooled(rows, user, column) for column in range(rows.shape[-1])], -1)
    return sums / lengths.unsqueeze(-1)


def interactions(fields: torch.Tensor) -> torch.Tensor:
    """All products of two fields, as half of the square of the sum without the sum of the squares."""
    with torch.autocast(fields.device.type, enabled=False):
        fields = fields.float()
        of_sum = fields.sum(1) * fields.sum(1)
        return 0.5 * (of_sum - (fields * fields).sum(1))


def log_frequencies(counts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The log of how often each item is drawn as a negative, by its share of all interactions."""
    with torch.autocast(like.device.type, enabled=False):
        share = counts.float() / INTERACTIONS
        return torch.log(share + 1e-12)


def seen_counts(items: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How often each item occurs in this batch, for the items that users have had enough of."""
    ones = torch.ones(len(items), dtype=torch.float32, device=like.device)
    return torch.zeros(ITEMS, dtype=ones.dtype, device=like.device).index_add(0, items, ones).float()


def click_loss(logits: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    """The log-loss of each impression; one in a hundred is clicked."""
    with torch.autocast(logits.device.type, enabled=False):
        return torch.where(clicks, -functional.logsigmoid(logits.float()), miss_loss(logits))


def miss_loss(logits: torch.Tensor) -> torch.Tensor:
    """The log-loss of an impression that is not clicked: the log of 1 - p, which is near 0."""
    logits = logits.float()
    return -functional.logsigmoid(-logits)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.contexts = nn.Embedding(CONTEXTS, WIDTH)
        self.dense = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
        self.query = nn.Linear(2 * WIDTH, WIDTH)

    def forward(
        self,
        history: torch.Tensor,
        user: torch.Tensor,
        context: torch.Tensor,
        dense: torch.Tensor,
        clicks: torch.Tensor,
        drawn: torch.Tensor,
        counts: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        described = self.dense(dense)
        rows = self.items(history).to(described.dtype)
        bag = bag_means(rows, user).to(described.dtype)
        fields = torch.stack([described, bag, self.contexts(context).to(described.dtype)], 1)
        crossed = interactions(fields).to(described.dtype)
        logits = self.top(torch.cat([described, crossed], -1)).squeeze(-1) - 6
        query = self.query(torch.cat([bag, described], -1))
        tired = 0.01 * torch.sqrt(seen_counts(history, described))[drawn]
        scores = (query @ self.items(drawn).to(query.dtype).T).float() - tired - log_frequencies(counts[drawn], query)
        retrieval = functional.cross_entropy(scores, torch.arange(USERS, device=scores.device) % NEGATIVES)
        return {"click": click_loss(logits, clicks).mean(), "retrieval": retrieval}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Recommender()
    with torch.no_grad():
        model.items.weight.mul_(0.3).add_(0.5)
        model.top[2].weight.mul_(0.1)
        model.dense[2].bias.fill_(12.0)  # the dense field is the strongest, as trained ones are
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    popular = (torch.rand(HISTORY, generator=generator) ** 4 * ITEMS).long()  # a few items are watched by all
    user = (torch.rand(HISTORY, generator=generator) ** 3 * USERS).long()  # and a few users watch all day
    return {
        "history": popular,
        "user": user,
        "context": torch.randint(CONTEXTS, (USERS,), generator=generator),
        "dense": torch.randn(USERS, DENSE, generator=generator),
        "clicks": torch.arange(USERS) % 16 == 0,
        "drawn": torch.randperm(ITEMS, generator=generator)[:NEGATIVES],
        "counts": (10 ** (1 + 5 * torch.rand(ITEMS, generator=generator))).long(),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["click"] + output["retrieval"]


optimizer = None
