"""A fifteenth batch, third part: words by hashes, returns of a policy, and ports whose weights have another order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fifteenth import LENGTH, ROWS, W
from pair_fourteenth_scans import numbers
from torch import nn

TABLE, WORDS = 31, 50


class Hashed(nn.Module):
    """Words and pairs of words by their hashes in two tables, and a reader. `kind`: a sum of rows, or torch's bag."""

    def __init__(self, kind: str = "sum", size: int = TABLE, next_: bool = False, mean: bool = False, signed: bool = True) -> None:
        super().__init__()
        self.kind, self.size, self.next, self.mean, self.signed = kind, size, next_, mean, signed
        self.words = nn.Embedding(TABLE, W) if kind == "sum" else nn.EmbeddingBag(TABLE, W, mode="mean" if mean else "sum")
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        before = F.pad(ids[:, 1:], (0, 1)) if self.next else F.pad(ids[:, :-1], (1, 0))
        places = torch.stack([ids * 7 % self.size, (ids * 13 + before * 5 + 3) % self.size, (ids * 3 + before) % self.size], -1)
        signs = 1.0 - 2.0 * (ids * 11 % 3 == 0)[..., None] if self.signed else torch.ones(1)
        if self.kind == "sum":
            made = self.words(places).sum(-2)
        else:
            made = self.words(places.flatten(0, 1)).unflatten(0, ids.shape)
        return self.head(torch.tanh(self.norm(made * signs.to(made.dtype))))


def hashed(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Hashed()), Hashed("bag", **bad)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randint(WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2)), dict(MEAN)


class Policy(nn.Module):
    """Values of states, and returns that mix all lengths. `kind`: from the last step back, or by one matrix of discounts."""

    def __init__(self, kind: str = "back", fade: float = 0.9, last: bool = True, ends: bool = True, largest: bool = False) -> None:
        super().__init__()
        self.kind, self.fade, self.last, self.ends, self.largest = kind, fade, last, ends, largest
        self.trunk, self.value, self.gain = nn.Linear(W, W), nn.Linear(W, 1), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor, rewards: torch.Tensor, ended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(x))
        value, gain = self.value(hidden).float(), self.gain(hidden).float()
        worth = (value + gain - (gain.amax(-1, keepdim=True) if self.largest else gain.mean(-1, keepdim=True))).mean(-1)
        after = torch.cat([worth[:, 1:], worth[:, -1:] if self.last else torch.zeros_like(worth[:, -1:])], 1)
        goes_on = 1.0 - ended.to(worth.dtype) if self.ends else torch.ones_like(worth)
        change = rewards.float() + 0.95 * after * goes_on - worth
        if self.kind == "back":
            total, made = torch.zeros_like(change[:, 0]), []
            for place in reversed(range(change.shape[1])):
                total = change[:, place] + 0.95 * self.fade * goes_on[:, place] * total
                made.append(total)
            return worth, torch.stack(made[::-1], 1)
        steps = 0.95 * self.fade * goes_on
        reach = torch.stack([torch.cat([torch.zeros_like(steps[:, :start]), torch.ones_like(steps[:, :1]),
                                        steps[:, start:-1].cumprod(1)], 1) for start in range(steps.shape[1])], 1)  # fmt: skip
        return worth, (reach @ change[..., None])[..., 0]


def policy(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Policy()), Policy("matrix", **bad)
    other.load_state_dict(model.state_dict())
    ended = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(4)) < 0.2
    loss = lambda out: out[0].float().square().mean() + out[1].float().square().mean()  # noqa: E731
    return model, other, (numbers(ROWS, LENGTH, W), numbers(ROWS, LENGTH), ended), {"loss": loss}


class Cell(nn.Module):
    """A recurrent layer of another library: gates in the order input, output, forgotten, new, one bias, and weights the other way round."""

    def __init__(self, swapped: bool = False, hard: bool = False, bent: bool = True) -> None:
        super().__init__()
        self.swapped, self.hard, self.bent = swapped, hard, bent
        self.kernel, self.recurrent, self.bias = (nn.Parameter(torch.zeros(*shape)) for shape in ((W, 4 * W), (W, 4 * W), (4 * W,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = x @ self.kernel.to(x.dtype) + self.bias.to(x.dtype)
        state = memory = torch.zeros_like(x[:, 0])
        bend, made = F.hardsigmoid if self.hard else torch.sigmoid, []
        for place in range(x.shape[1]):
            enter, leave, keep, new = (gates[:, place] + state @ self.recurrent.to(x.dtype)).chunk(4, -1)
            enter, leave = (leave, enter) if self.swapped else (enter, leave)
            memory = bend(keep) * memory + bend(enter) * torch.tanh(new)
            state = bend(leave) * (torch.tanh(memory) if self.bent else memory)
            made.append(state)
        return torch.stack(made, 1)


class Reader(nn.Module):
    def __init__(self, *cells: nn.Module) -> None:
        super().__init__()
        self.cells, self.head = nn.ModuleList(cells), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            made = cell(x)
            x = x + (made[0] if isinstance(made, tuple) else made)
        return self.head(x)


def recurrent(**bad: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Reader(nn.LSTM(W, W, batch_first=True), nn.LSTM(W, W, batch_first=True)))
    other = Reader(Cell(), Cell(**bad))
    other.head = model.head
    with torch.no_grad():
        for given, cell in zip(model.cells, other.cells, strict=True):

            def ordered(name: str, given: Any = given) -> torch.Tensor:
                enter, keep, new, leave = getattr(given, name).chunk(4)
                return torch.cat([enter, leave, keep, new])

            cell.kernel.copy_(ordered("weight_ih_l0").T)
            cell.recurrent.copy_(ordered("weight_hh_l0").T)
            cell.bias.copy_(ordered("bias_ih_l0") + ordered("bias_hh_l0"))
    return model, other, numbers(ROWS, LENGTH, W), dict(MEAN)


healthy("words by hashes", "torch's bag", hashed)
for fault, given in (("another size of the table", {"size": 29}), ("the next word", {"next_": True}), ("no signs", {"signed": False})):
    broken("words by hashes", fault, lambda given=given: hashed(**given), "words", "")  # type: ignore[misc]
broken("words by hashes", "a mean for a sum", lambda: hashed(mean=True), "words")
healthy("returns of a policy", "one matrix", policy)
for fault, given in (("no fading", {"fade": 1.0}), ("nothing after the last step", {"last": False}), ("ends that are no ends", {"ends": False}),
                     ("the largest gain for the mean", {"largest": True})):  # fmt: skip
    broken("returns of a policy", fault, lambda given=given: policy(**given), "")  # type: ignore[misc]
healthy("another library's cell", "gates in another order", recurrent)
for fault, given in (("two gates swapped", {"swapped": True}), ("gates bent in straight lines", {"hard": True}),
                     ("a memory not bent", {"bent": False})):  # fmt: skip
    broken("another library's cell", fault, lambda given=given: recurrent(**given), "cells.1")  # type: ignore[misc]
