"""A twenty-first batch, committed before the judge has seen any of it: projections in other layouts, places, slopes, chunks and windows.

The second of three parts has the fault. Faults as such ports have them: heads tiled where each is repeated, a rotation over too many dimensions,
slopes of too many heads, a chunk that begins one token late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_fourteenth_scans import numbers
from pair_nineteenth import ROWS, State, W, filled, seeded
from pair_nineteenth_shapes import B, Two
from torch import nn

Faults = dict[str, tuple[dict[str, Any], tuple[str, ...], str]]
"""For each fault what the port is given, the modules of which any may be named, and a pattern of the words that name the change, or ""."""
FACTOR = "times"


def family(name: str, way: str, make: Callable[..., Made], faults: Faults) -> None:
    healthy(name, way, make)
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


def port(of: Any, other: Any, convert: Callable[[State], State] = dict, inputs: Any = ROWS, **ways: Any) -> Callable[..., Made]:
    """`of` three times in `model`, and `other` three times in the port."""
    return lambda **bad: filled(seeded(Two, kind=of), Two(lambda **more: other(**{**ways, **more}), bad), inputs, convert)


def each(state: State, name: str, change: Callable[[torch.Tensor], dict[str, torch.Tensor]]) -> State:
    """Replaces each weight whose name has `name` as its last module by those that `change` makes of it, under its module's name."""
    found: State = {}
    for whole, value in state.items():
        parts = whole.split(".")
        if len(parts) > 1 and parts[-2] == name:
            found |= {".".join([*parts[:-2], new, parts[-1]]): made for new, made in change(value).items()}
        else:
            found[whole] = value
    return found


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None, late: int = 0) -> torch.Tensor:
    """Attention by its formula, of queries (batch, heads, length, size)."""
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5 + (0 if bias is None else bias)
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1 + late)
    return scores.masked_fill(hidden, -1e4).softmax(-1).to(v.dtype) @ v


class Separate(nn.Module):
    """Four heads of queries, of which two each share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Linear(W, W), nn.Linear(W, 8), nn.Linear(W, 8), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(made.transpose(1, 2).flatten(2))


class Groups(nn.Module):
    """One projection whose rows are by group: two heads of queries, one of keys, one of values. `form`: how keys meet their queries."""

    def __init__(self, form: str = "repeat", swapped: bool = False, thirds: bool = False, tiled: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.form, self.swapped, self.thirds, self.tiled, self.scale = form, swapped, thirds, tiled, scale
        self.qkv, self.out = nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = self.qkv(x).unflatten(-1, (4, 2, 4) if self.thirds else (2, 4, 4))
        groups = groups.transpose(2, 3) if self.thirds else groups  # (batch, length, group, member, size)
        q, k, v = groups[..., :2, :], groups[..., 2, :], groups[..., 3, :]
        k, v = (v, k) if self.swapped else (k, v)
        q = q * self.scale
        if self.form == "einsum":
            scores = torch.einsum("btgms,bugs->bgmtu", q, k).float() / 2
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -1e4)
            return self.out(torch.einsum("bgmtu,bugs->btgms", scores.softmax(-1).to(v.dtype), v).flatten(2))
        many = (lambda part: part.repeat(1, 1, 2, 1)) if self.tiled else (lambda part: part.repeat_interleave(2, 2))
        made = causal(q.flatten(2, 3).transpose(1, 2), many(k).transpose(1, 2), many(v).transpose(1, 2))
        return self.out(made.transpose(1, 2).flatten(2))


def by_group(state: State) -> State:
    found = {name: value for name, value in state.items() if name.split(".")[-2] not in ("q", "k", "v")}
    for name in [name for name in state if name.split(".")[-2] == "q"]:
        q, k, v = (state[name.replace(".q.", f".{each}.")] for each in "qkv")
        parts = [q.unflatten(0, (2, 2, 4)), k.unflatten(0, (2, 1, 4)), v.unflatten(0, (2, 1, 4))]
        found[name.replace(".q.", ".qkv.")] = torch.cat(parts, 1).flatten(0, 2)
    return found


family("rows by group", "keys repeated", port(Separate, Groups, by_group), {
    "keys for values": ({"swapped": True}, B, ""), "heads first": ({"thirds": True}, B, ""), "keys tiled": ({"tiled": True}, B, ""),
    "queries doubled": ({"scale": 2.0}, B, FACTOR),
})  # fmt: skip
healthy("rows by group", "sums over groups", port(Separate, Groups, by_group, form="einsum"))


class Turned(nn.Module):
    """Rotary places in six of eight dimensions. `kind`: pairs of halves, or of neighbours with the rows of queries and keys in another order."""

    def __init__(self, kind: str = "halves", base: float = 100.0, all_: bool = False, start: int = 0, back: bool = False) -> None:
        super().__init__()
        self.kind, self.base, self.all, self.start, self.back = kind, base, all_, start, back
        self.q, self.k, self.v, self.out = (nn.Linear(W, W) for _ in range(4))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        wide = 8 if self.all else 6
        x, rest = x[..., :wide], x[..., wide:]
        steps = self.base ** -(torch.arange(0, wide, 2) / wide)
        angles = (self.start + torch.arange(x.shape[-2]))[:, None] * steps
        sine, cosine = angles.sin().to(x.dtype) * (-1 if self.back else 1), angles.cos().to(x.dtype)
        a, b = x.chunk(2, -1) if self.kind == "halves" else (x[..., 0::2], x[..., 1::2])
        pair = a * cosine - b * sine, a * sine + b * cosine
        return torch.cat([*pair, rest] if self.kind == "halves" else [torch.stack(pair, -1).flatten(-2), rest], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(causal(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2))


def neighbours(state: State, whole: int = 6) -> State:
    order = torch.cat([torch.arange(whole).view(2, -1).mT.flatten(), torch.arange(whole, 8)])
    rows = torch.cat([order, order + 8])
    return {name: value[rows] if name.split(".")[-2] in ("q", "k") else value for name, value in state.items()}


family("a part is turned", "neighbours, rows permuted", port(Turned, Turned, neighbours, kind="neighbours"), {
    "a base of a thousand": ({"base": 1000.0}, B, "1000"), "all is turned": ({"all_": True}, B, ""),
    "rows as for halves": ({"kind": "halves"}, B, ""),
})  # fmt: skip
family("places from one on", "only distances count", lambda **bad: port(Turned, Turned, start=1)(**bad), {
    "a smaller base": ({"base": 90.0}, B, "100"),
})  # fmt: skip


class Sections(nn.Module):
    """Places of time, row and column, each for a section of the dimensions. `kind`: a table by index, or each section by itself."""

    def __init__(self, kind: str = "index", order: tuple[int, ...] = (0, 1, 2), flat: bool = False, split: tuple[int, ...] = (2, 1, 1)) -> None:
        super().__init__()
        self.kind, self.order, self.flat, self.split = kind, order, flat, split
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(x.shape[1])
        places = torch.stack([count] * 3 if self.flat else [count // 4, count // 2 % 2, count % 2])[list(self.order)]
        steps = 30.0 ** -(torch.arange(4) / 4)
        if self.kind == "index":
            angles = places[torch.repeat_interleave(torch.arange(3), torch.tensor(self.split))].mT * steps
        else:
            angles = torch.cat([places[part][:, None] * some for part, some in enumerate(steps.split(self.split))], -1)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)

        def turned(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

        return self.out(causal(turned(q), turned(k), v).transpose(1, 2).flatten(2))


family("places of three kinds", "section by section", port(Sections, Sections, kind="sections"), {
    "columns for rows": ({"order": (0, 2, 1)}, B, ""), "text's places": ({"flat": True}, B, ""), "other sections": ({"split": (1, 1, 2)}, B, ""),
})  # fmt: skip


def slopes(heads: int) -> list[float]:
    """Of a power of two of heads, and those of twice as many for the rest."""
    near = 2 ** math.floor(math.log2(heads))
    made = [2 ** (-8 * (number + 1) / near) for number in range(near)]
    return made + [2 ** (-4 * (number + 1) / near) for number in range(0, 2 * (heads - near), 2)]


class Sloped(nn.Module):
    """Six heads with slopes. `kind`: by distance, or by the key's place alone, which softmax makes the same."""

    def __init__(self, kind: str = "distance", plain: bool = False, sign: float = 1.0, order: bool = False) -> None:
        super().__init__()
        self.kind, self.plain, self.sign, self.order = kind, plain, sign, order
        self.qkv, self.out = nn.Linear(W, 72), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (6, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        falls = [2 ** (-8 * (number + 1) / 6) for number in range(6)] if self.plain else slopes(6)
        steep = self.sign * torch.tensor(sorted(falls, reverse=True) if self.order else falls)[:, None, None]
        place = torch.arange(x.shape[1])
        bias = steep * (place if self.kind == "place" else place - place[:, None])
        return self.out(causal(q, k, v, bias).transpose(1, 2).flatten(2))


family("slopes of six heads", "by the place of the key", port(Sloped, Sloped, kind="place"), {
    "an even spread": ({"plain": True}, B, ""), "in the order of size": ({"order": True}, B, ""), "rising": ({"sign": -1.0}, B, ""),
})  # fmt: skip


class Chunks(nn.Module):
    """Each token sees those before it in its chunk of four. `kind`: by a mask, or each chunk as a row of its own, the last one filled up."""

    def __init__(self, kind: str = "mask", late: int = 0, before: bool = False, open_: bool = False) -> None:
        super().__init__()
        self.kind, self.late, self.before, self.open = kind, late, before, open_
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        length, place = x.shape[1], torch.arange(x.shape[1])
        if self.kind == "mask":
            chunk = (place + self.late) // 4
            apart = (chunk[:, None] - chunk) if self.before else chunk[:, None] != chunk
            hidden = (apart > 1 if self.before else apart) | (place[:, None] < place)
            scores = ((q @ k.mT).float() / math.sqrt(8)).masked_fill(hidden, -1e4)
            made = scores.softmax(-1).to(v.dtype) @ v
        else:
            more = -length % 4
            q, k, v = (F.pad(part, (0, 0, 0, more)).unflatten(2, (-1, 4)) for part in (q, k, v))
            hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
            scores = (q @ k.mT).float() / math.sqrt(8)
            made = ((scores if self.open else scores.masked_fill(hidden, -1e4)).softmax(-1).to(v.dtype) @ v).flatten(2, 3)[:, :, :length]
        return self.out(made.transpose(1, 2).flatten(2))


family("chunks of four", "rows of their own", port(Chunks, Chunks, kind="rows"), {
    "both ways within a chunk": ({"open_": True}, B, ""), "chunks one token early": ({"kind": "mask", "late": 1}, B, "late"),
    "the chunk before too": ({"kind": "mask", "before": True}, B, "before"),
})  # fmt: skip


class Wide(nn.Module):
    """Layers with a window, and another base of rotary places, in turn with layers that see all."""

    def __init__(self, window: int = 0, base: float = 100.0, form: str = "mask", more: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.window, self.base, self.form, self.more, self.scale = window, base, form, more, scale
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        length, place = x.shape[1], torch.arange(x.shape[1])
        angles = place[:, None] * self.base ** -(torch.arange(4) / 4)
        turn = torch.polar(torch.ones_like(angles), angles)

        def turned(y: torch.Tensor) -> torch.Tensor:
            a, b = y.float().chunk(2, -1) if y.dtype is not torch.float64 else y.chunk(2, -1)
            made = torch.complex(a, b) * turn.to(torch.complex128 if y.dtype is torch.float64 else torch.complex64)
            return torch.cat([made.real, made.imag], -1).to(y.dtype)

        q, k, seen = turned(q) * self.scale, turned(k), self.window + self.more
        if not self.window:
            return self.out(causal(q, k, v).transpose(1, 2).flatten(2))
        if self.form == "mask":
            bias = torch.zeros(length, length).masked_fill(place[:, None] - place >= seen, -1e4)
            return self.out(causal(q, k, v, bias).transpose(1, 2).flatten(2))
        k, v = (F.pad(part, (0, 0, seen - 1, 0)).unfold(2, seen, 1) for part in (k, v))  # (batch, heads, length, size, window)
        scores = (q[..., None, :] @ k)[..., 0, :].float() / math.sqrt(8)
        scores = scores.masked_fill(place[:, None] + torch.arange(seen) < seen - 1, -1e4)
        return self.out((scores.softmax(-1).to(v.dtype)[..., None, :] @ v.mT)[..., 0, :].transpose(1, 2).flatten(2))


class Pattern(Two):
    def __init__(self, bad: dict[str, Any] | None = None, form: str = "mask") -> None:
        super().__init__(Wide)
        kinds = {"a": {"window": 4, "base": 20.0}, "b": {"window": 4, "base": 20.0, **(bad or {})}, "c": {}}
        self.body = nn.ModuleDict({name: Wide(form=form, **ways) for name, ways in kinds.items()})  # type: ignore[arg-type]


family("windows and all", "keys unfolded", lambda **bad: filled(seeded(Pattern), Pattern(bad, form="unfold"), numbers(2, 9, 6)), {
    "a window of five": ({"more": 1}, B, "more|4"), "the base of the others": ({"base": 100.0}, B, "20"), "sees all": ({"window": 0}, B, "4"),
    "queries scaled twice": ({"scale": 8**-0.5}, B, "scale"),
})  # fmt: skip
