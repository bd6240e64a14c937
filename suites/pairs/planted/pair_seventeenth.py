"""A seventeenth batch, committed before the judge has seen any of it: rows in other numbers and orders, as the sixteenth batch had them first.

Visible patches beside a mask, slots of experts with padding, rows that are drawn twice, time first, weights of attention returned too, dropout in a
module that is recomputed, states that several layers read. A fault is in the second layer alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import Stream, numbers
from torch import nn
from torch.utils.checkpoint import checkpoint

W, ROWS, LENGTH = 16, 3, 9
LAST = "layers.1"


def pair(part: Callable[..., nn.Module], other: Callable[..., nn.Module], *, mine: Any = Stream, theirs: Any = Stream, **bad: Any) -> Made:
    torch.manual_seed(0)
    model, port = spread(mine(part(), part())), theirs(other(), other(**bad))
    port.load_state_dict(model.state_dict())
    return model, port, numbers(ROWS, LENGTH, W), dict(MEAN)


class Mixing(nn.Module):
    """Each token reads all that are seen, with shares by a product. `sharp` scales the scores; `itself`: it reads itself; `weights`: returned."""

    def __init__(self, sharp: float = 1.0, itself: bool = True, weights: bool = False, late: bool = False) -> None:
        super().__init__()
        self.sharp, self.itself, self.weights, self.late = sharp, itself, weights, late
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor | None = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).float() * (self.sharp / math.sqrt(W))
        if seen is not None:
            scores = scores.masked_fill(~seen[:, None], -math.inf)
        if not self.itself:
            scores = scores.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -math.inf)
        shares = scores.softmax(-1).to(v.dtype)
        made = self.out(shares @ (v.roll(1, 1) if self.late else v))
        return (made, shares) if self.weights else made


def visible(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0, 2, 3, 5, 8])


class Hidden(Stream):
    """All patches, of which some are hidden from all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros(len(x), LENGTH, dtype=torch.bool)
        seen[:, visible(x)] = True
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x, seen)
        return self.head(self.norm(x))[:, visible(x)].mean(1)


class Visible(Stream):
    """The visible patches alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, visible(x)]).mean(1)


class Twice(Stream):
    """Each row is run twice, as where two answers are drawn, and the first is kept."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.repeat_interleave(2, 0))[::2]


class Returning(Stream):
    """Layers that return their shares too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            made, _ = layer(x)
            x = x + made
        return self.head(self.norm(x))


def hidden(**bad: Any) -> Made:
    return pair(Mixing, Mixing, mine=Hidden, theirs=Visible, **bad)


def twice(**bad: Any) -> Made:
    return pair(Mixing, Mixing, theirs=Twice, **bad)


def returning(**bad: Any) -> Made:
    return pair(Mixing, lambda **more: Mixing(weights=True, **more), theirs=Returning, **bad)


for family, made in (("visible patches", hidden), ("two answers", twice), ("shares returned", returning)):
    healthy(family, "the same", made)
    broken(family, "sharper", lambda made=made: made(sharp=1.2), LAST)  # type: ignore[misc]
    broken(family, "values one late", lambda made=made: made(late=True), LAST)  # type: ignore[misc]
broken("visible patches", "not itself", lambda: hidden(itself=False), LAST)


class Slots(nn.Module):
    """Two experts. `slots`: each gets a table of seven slots, which are filled with its tokens and zeros. `early`: the slot of the token before."""

    def __init__(self, slots: bool = False, early: bool = False, swapped: bool = False) -> None:
        super().__init__()
        self.slots, self.early, self.swapped = slots, early, swapped
        self.router = nn.Linear(W, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(W, 2 * W), nn.SiLU(), nn.Linear(2 * W, W)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        shares = self.router(flat).float().softmax(-1)
        share, which = shares.max(-1)
        made = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            if not self.slots:
                made = made + torch.where((which == number)[:, None], expert(flat), 0)
                continue
            rows = (which == (1 - number if self.swapped else number)).nonzero()[:, 0]
            table = torch.cat([flat[rows], flat.new_zeros(len(flat) - len(rows), W)])
            result = expert(table)[: len(rows)]
            made = made.index_add(0, rows, (result.roll(1, 0) if self.early else result).to(made.dtype))
        return (made * share[:, None].to(made.dtype)).unflatten(0, x.shape[:2])


healthy("slots of experts", "zeros behind", lambda: pair(Slots, lambda **bad: Slots(True, **bad)))
broken("slots of experts", "one early", lambda: pair(Slots, lambda **bad: Slots(True, **bad), early=True), LAST)
broken("slots of experts", "the other expert", lambda: pair(Slots, lambda **bad: Slots(True, **bad), swapped=True), LAST)


class Dropped(nn.Module):
    """A branch with a module of dropout, recomputed or not."""

    def __init__(self, again: bool = False, kept: bool = True) -> None:
        super().__init__()
        self.again, self.kept = again, kept
        self.branch = nn.Sequential(nn.Linear(W, 2 * W), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * W, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.again:
            return self.branch(x)  # type: ignore[no-any-return]
        return checkpoint(self.branch, x, use_reentrant=False, preserve_rng_state=self.kept)  # type: ignore[no-any-return]


healthy("a module of dropout", "recomputed", lambda: pair(Dropped, lambda **bad: Dropped(True, **bad)))
broken("a module of dropout", "other numbers", lambda: pair(Dropped, lambda **bad: Dropped(True, **bad), kept=False), LAST, f"{LAST}.branch")


class Far(nn.Module):
    """Reads places, of which only distances count. `cut`: distances up to four."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.cut, self.inside, self.slope = cut, nn.Linear(W, W), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        far = (places[:, None] - places).abs().float()
        far = far.clamp(max=4) if self.cut else far
        return F.silu(self.inside((-far * self.slope.abs().float() - far / 3).softmax(-1).to(x.dtype) @ x))


class Placed(Stream):
    first = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(self.first, self.first + x.shape[1])
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x, places)
        return self.head(self.norm(x))


class Later(Placed):
    first = 30


healthy("places that go on", "from thirty on", lambda: pair(Far, Far, mine=Placed, theirs=Later))
broken("places that go on", "cut", lambda: pair(Far, Far, mine=Placed, theirs=Later, cut=True), LAST)
