"""The twenty-third batch, fifth part: tensors that are exchanged. Blocks with two inputs, ops with two sides, one network for two conditions.

The code that hands them on counts as wrong: the block, or the model itself, whose name is "".
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_twentysecond_sequences import B, W, ported
from pair_twentythird import family
from pair_twentythird_callers import TOP, Branch, filled
from pair_twentythird_ways import SEEN, attended, heads
from torch import nn


class Film(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


class Reads(nn.Module):
    """Attention of one stream to another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(W, W) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.out(attended(heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory)), SEEN))
        return made


class Mix(nn.Module):
    """A gate between two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * W, W)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.lerp(a, b.to(a.dtype), self.gate(torch.cat([a, b.to(a.dtype)], -1)).sigmoid().to(a.dtype))


class Crossed(nn.Module):
    """A block that hands two tensors to each of its parts. `wrong`: which part gets them exchanged, or which op."""

    def __init__(self, named: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.named, self.wrong = named, wrong
        self.made, self.film, self.reads, self.mix = nn.Linear(W, 2 * W), Film(), Reads(), Mix()

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        scale, shift = self.made(memory).tanh().chunk(2, -1)
        scale, shift = (shift, scale) if self.wrong == "film" else (scale, shift)
        y = self.film(x, shift=shift, scale=scale) if self.named else self.film(x, scale, shift)
        read = self.reads(memory, y) if self.wrong == "reads" else self.reads(y, memory)
        y = self.mix(read, y) if self.wrong == "mix" else self.mix(y, read)
        y = y - memory if self.wrong == "minus" else memory - y
        return x + (torch.where(x > 0, 0.5 * y, y) if self.wrong == "where" else torch.where(x > 0, y, 0.5 * y))


class Towers(nn.Module):
    """Two streams for three blocks. `exchanged`: the second block gets them the other way round."""

    def __init__(self, second: dict[str, Any] | None = None, exchanged: bool = False, late: bool = False, **ways: Any) -> None:
        super().__init__()
        self.exchanged, self.late = exchanged, late
        self.inside, self.memory, self.head = nn.Linear(6, W), nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Crossed(**ways), Crossed(**{**ways, **(second or {})}), Crossed(**ways)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, memory = self.inside(x), self.memory(x)
        for number, layer in enumerate(self.layers):
            given = x, (x if self.late and number == 1 else memory)
            x = layer(*(given[::-1] if self.exchanged and number == 1 else given))
        return self.head(x)


def crossed(exchanged: bool = False, late: bool = False, **second: Any) -> Made:
    return ported(Towers, Towers(second, exchanged, late, named=True))


family("two tensors for each part", "by their names", crossed, {
    "scale and shift exchanged": ({"wrong": "film"}, B, ""), "memory and stream exchanged": ({"wrong": "reads"}, B, ""),
    "sides of a gate exchanged": ({"wrong": "mix"}, B, ""), "a difference the other way": ({"wrong": "minus"}, B, ""),
    "branches exchanged": ({"wrong": "where"}, B, ""), "arguments of a block exchanged": ({"exchanged": True}, TOP, ""),
    "a stream for the memory": ({"late": True}, TOP, ""),
})  # fmt: skip


class Guided(nn.Module):
    """One network for two conditions in one batch, or in two calls; the difference of both is scaled."""

    def __init__(self, joined: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.joined, self.wrong = joined, wrong
        self.inside, self.head, self.layers, self.codes = nn.Linear(6, W), nn.Linear(W, 5), nn.ModuleList([Branch(), Branch()]), nn.Embedding(2, W)

    def net(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        codes = self.codes.weight.flip(0) if self.wrong == "codes" else self.codes.weight
        if self.joined:
            bare, given = self.net(torch.cat([x + codes[0], x + codes[1]])).chunk(2)
        else:
            bare, given = self.net(x + codes[0]), self.net(x + codes[1])
        bare, given = (given, bare) if self.wrong == "sides" else (bare, given)
        return given + 3.0 * (given - bare) if self.wrong == "more" else bare + 3.0 * (given - bare)


def guided(joined: bool = True, **bad: Any) -> Made:
    return filled(Guided(), Guided(joined, **bad))


family("two conditions at once", "in one batch", guided, {
    "conditions exchanged": ({"wrong": "codes"}, TOP, ""), "results exchanged": ({"wrong": "sides"}, TOP, ""),
    "once too much": ({"wrong": "more"}, TOP, ""),
}, in_two_calls={"joined": False})  # fmt: skip
