"""Points of two pictures that are the same: waves of places, attention within and across, optimal transport with a bin for what has no match."""

from __future__ import annotations

import math

import torch
from torch import nn

STEPS = 1
PAIRS, POINTS, WIDTH, HEADS, OCTAVES, ROUNDS = 2, 96, 64, 4, 6, 20
SIZE = 1600.0


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def waves(places: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of pixels, from waves as wide as the picture to one of 25 pixels."""
    share = (places - SIZE / 2) / SIZE
    angles = (share.unsqueeze(-1) * (2 * math.pi) * 2.0 ** torch.arange(OCTAVES).float()).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1)


def transported(scores: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Logarithms of a plan whose rows and columns have their due: Sinkhorn's rounds, in logarithms."""
    due = torch.zeros(POINTS + 1).index_fill(0, torch.tensor([POINTS]), math.log(POINTS)) - math.log(2 * POINTS)
    rows, columns = torch.zeros(scores.shape[:2]), torch.zeros(scores.shape[::2])
    for _ in range(ROUNDS):
        rows = due - torch.logsumexp(scores + columns.unsqueeze(1), 2)
        columns = due - torch.logsumexp(scores + rows.unsqueeze(2), 1)
    return scores + rows.unsqueeze(2) + columns.unsqueeze(1) + math.log(2 * POINTS)


def plan(logs: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return torch.exp(logs[:, :-1, :-1])


def doubt(chances: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The entropy of each row of the plan."""
    return -(chances * torch.log(chances + 1e-9)).sum(-1)


def shifted(chances: torch.Tensor, left: torch.Tensor, right: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far each point has moved, on average over its matches, in pixels."""
    share = chances / chances.sum(-1, keepdim=True)
    return share @ right - left


def off_line(left: torch.Tensor, right: torch.Tensor, form: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far a point is from the line on which its match must be, of places in pixels."""
    one, other = (torch.cat([each, torch.ones_like(each[..., :1])], -1) for each in (left, right))
    line = one @ form.transpose(1, 2)
    return (line * other).sum(-1) / (line[..., :2].norm(dim=-1) + 1e-6)


class Look(nn.Module):
    """One round of attention, within a picture or across two."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen = self.attention(x, other, other, need_weights=False)[0]
        return self.norm(x + self.wide(torch.cat([x, seen], -1)))


class Matching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place, self.looks = nn.Linear(4 * OCTAVES, WIDTH), nn.ModuleList(Look() for _ in range(4))
        self.last, self.bin = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(1.0))

    def forward(
        self, left: torch.Tensor, right: torch.Tensor, looks_left: torch.Tensor, looks_right: torch.Tensor, form: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        weight = self.place.weight
        low = low_dtype(weight)
        left, right, form = left.float(), right.float(), form.float()
        with torch.autocast(left.device.type, enabled=False):
            here, there = waves(left, low).to(weight.dtype), waves(right, low).to(weight.dtype)
        a, b = looks_left + self.place(here), looks_right + self.place(there)
        for turn, look in enumerate(self.looks):
            a, b = look(a, b if turn % 2 else a), look(b, a if turn % 2 else b)
        a, b = self.last(a), self.last(b)
        with torch.autocast(left.device.type, enabled=False):
            scores = 1.5 * a.float() @ b.float().transpose(1, 2)
            scores = torch.cat([scores, self.bin.float().expand(PAIRS, POINTS, 1)], 2)
            scores = torch.cat([scores, self.bin.float().expand(PAIRS, 1, POINTS + 1)], 1)
            logs = transported(scores, low)
            chances = plan(logs, low)
            shift = shifted(chances, left, right, low)
            unsure = doubt(chances, low)
            away = off_line(left, right, form, low)
            matched = -logs.diagonal(dim1=1, dim2=2)[:, :-1]
            kept = torch.exp(-away.abs() / 2)
            loss = (matched * kept).sum() / kept.sum() + 0.1 * unsure.mean()
        return {"loss": loss, "plan": chances, "shift": shift / SIZE, "away": away}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Matching()


def batch() -> dict[str, torch.Tensor]:
    """A camera that moves to the side: matches are on the same row, up to a pixel, some 30 pixels to the left."""
    generator = torch.Generator().manual_seed(4)
    left = 100 + 1400 * torch.rand(PAIRS, POINTS, 2, generator=generator)
    shift = torch.stack([-30 - 20 * torch.rand(PAIRS, POINTS, generator=generator), torch.randn(PAIRS, POINTS, generator=generator)], -1)
    looks = torch.randn(PAIRS, POINTS, WIDTH, generator=generator)
    form = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]).expand(PAIRS, 3, 3)
    return {
        "left": left.round().long(),
        "right": (left + shift).round().long(),
        "looks_left": looks,
        "looks_right": looks + 0.3 * torch.randn(PAIRS, POINTS, WIDTH, generator=generator),
        "form": form.clone(),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
