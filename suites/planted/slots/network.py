"""Slots that take parts of pictures: attention in which slots compete, pictures made of layers, places, sizes and speeds of what slots have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
ROWS, TIMES, SIZE, WIDTH, SLOTS, TURNS, SPREAD = 2, 2, 16, 32, 4, 3, 0.3
PIXELS = SIZE * SIZE


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def grid(low: torch.dtype) -> torch.Tensor:
    """Column and row of each pixel, from nought to one: [pixels, 2]."""
    along = (torch.arange(SIZE).float() + 0.5) / SIZE
    return torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).flatten(0, 1)


def competed(scores: torch.Tensor, there: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which slot takes each pixel, as weights over the pixels of each slot: [rows, slots, pixels]. A slot may be switched off."""
    taken = torch.softmax(scores.float().masked_fill(~there.unsqueeze(-1), -1e4), 1) * there.unsqueeze(-1)
    return taken / (taken.sum(-1, keepdim=True) + 1e-8)


def layers(logits: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much of each pixel each slot paints."""
    return torch.softmax(4 * logits.float(), 1)


def likelihood(pixels: torch.Tensor, painted: torch.Tensor, masks: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of each pixel's density under a mixture of what the slots paint."""
    apart = (pixels.float().unsqueeze(1) - painted.float()).square().sum(-1) / (2 * SPREAD**2)
    return torch.logsumexp(torch.log(masks + 1e-6) - apart, 1)


def centres(masks: torch.Tensor, places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The mean place of each slot's pixels: [rows, slots, 2]."""
    return (masks.float() @ places) / (masks.float().sum(-1, keepdim=True) + 1e-6)


def speeds(now: torch.Tensor, before: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many pixels each slot has moved."""
    return SIZE * (now - before)


def sizes(masks: torch.Tensor, places: torch.Tensor, middle: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The variance of the places of each slot's pixels."""
    apart = places - middle.unsqueeze(2)
    return (masks.float().unsqueeze(-1) * apart.square()).sum(2) / masks.float().sum(-1, keepdim=True)


def areas(masks: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many pixels each slot paints."""
    return masks.float().sum(-1)


def agreement(counts: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The share of pairs of pixels that are together in both of two groupings: of a table of counts, [rows, groups, groups]."""
    counts = counts.float()
    both = (counts * (counts - 1) / 2).sum((-1, -2))
    mine, theirs = ((each * (each - 1) / 2).sum(-1) for each in (counts.sum(-1), counts.sum(-2)))
    expected = mine * theirs / (PIXELS * (PIXELS - 1) / 2)
    return (both - expected) / ((mine + theirs) / 2 - expected)


class Slots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Conv2d(3, WIDTH, 5, padding=2), nn.Linear(2, WIDTH)
        self.norm, self.fresh, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.cell, self.deep = nn.GRUCell(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.first = nn.Parameter(torch.randn(SLOTS, WIDTH))
        self.spot, self.paint = nn.Linear(2, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def forward(self, levels: torch.Tensor, there: torch.Tensor, kinds: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.query.weight
        low = low_dtype(weight)
        with torch.autocast("cpu", enabled=False):
            places = grid(low)
            pictures = levels.float() / 255
        slots, found, cost = self.first.expand(ROWS, -1, -1).to(weight.dtype), [], 0.0
        for time in range(TIMES):
            x = self.enter((pictures[:, time] - 0.5).to(weight.dtype)).flatten(2).transpose(1, 2)
            x = self.norm(x + self.place(places.to(weight.dtype))).to(x.dtype)
            key, value = self.both(x).chunk(2, -1)
            for _ in range(TURNS):
                scores = self.query(self.fresh(slots).to(weight.dtype)) @ key.transpose(-1, -2) / WIDTH**0.5
                with torch.autocast("cpu", enabled=False):
                    weights = competed(scores, there, low)
                given = weights.to(value.dtype) @ value
                slots = self.cell(given.flatten(0, 1), slots.flatten(0, 1).to(given.dtype)).view(ROWS, SLOTS, WIDTH)
                slots = slots + self.deep(self.after(slots).to(slots.dtype))
            made = self.paint(functional.relu(slots.unsqueeze(2) + self.spot(places.to(weight.dtype) * 8 - 4)))
            with torch.autocast("cpu", enabled=False):
                masks = layers(made[..., 3], low)
                seen = pictures[:, time].flatten(2).transpose(1, 2)
                cost = cost - likelihood(seen, torch.sigmoid(made[..., :3].float()), masks, low).mean() / TIMES
                middle = centres(masks, places, low)
                found.append((masks, middle))
        with torch.autocast("cpu", enabled=False):
            (_, before), (masks, now) = found
            moved, wide, many = speeds(now, before, low), sizes(masks, places, now, low), areas(masks, low)
            mine = functional.one_hot(masks.argmax(1), SLOTS).float()
            table = mine.transpose(-1, -2) @ functional.one_hot(kinds.flatten(1), 3).float()
            score = agreement(table.detach(), low)
            cost = cost + 0.1 * wide.mean() + 0.01 * moved.square().mean() + 0.1 * (many / PIXELS).square().sum(-1).mean()
        return {"loss": cost, "moved": moved, "wide": wide, "areas": many / PIXELS, "weights": weights, "score": score}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Slots()


def batch() -> dict[str, torch.Tensor]:
    """Two pictures in a row with two coloured squares each, which move by a pixel; one slot of the second picture is switched off."""
    generator = torch.Generator().manual_seed(26)
    levels = torch.randint(90, 130, (ROWS, 1, 3, SIZE, SIZE), generator=generator).repeat(1, TIMES, 1, 1, 1)
    kinds = torch.zeros(ROWS, SIZE, SIZE, dtype=torch.long)
    for time in range(TIMES):
        levels[:, time, 0, 2 + time : 7 + time, 3:8], levels[:, time, 2, 9:14, 8 + time : 14 + time] = 240, 20
    kinds[:, 3:8, 3:8], kinds[:, 9:14, 9:15] = 1, 2
    there = torch.ones(ROWS, SLOTS, dtype=torch.bool)
    there[1, 3] = False
    return {"levels": levels, "there": there, "kinds": kinds}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
