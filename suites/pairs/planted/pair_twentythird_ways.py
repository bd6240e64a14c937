"""The twenty-third batch, third part: one stack of attention asked in other ways: a token at a time, in a row of documents, over ranks by hand,
with masks of numbers, with converted weights, compiled, in training mode.

Three layers, of which the second has the fault. Faults as people report them: a bias that each rank adds, a cache whose newest token overwrites the
wrong slot, a mask that is added twice, heads that are permuted in the queries alone, a dropout that is left on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, spread
from pair_fourteenth_scans import numbers
from pair_twentysecond_sequences import LENGTH, ROWS, B, Net, W, ported
from pair_twentythird import State, family, turned
from torch import nn

HEADS, SIZE = 4, 4
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, SIZE)).transpose(1, 2)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    made = ((q @ k.mT).float() * SIZE**-0.5).masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v
    return made.transpose(1, 2).flatten(2)


class Grouped(nn.Module):
    """Causal attention with two keys for four queries, then two products. `way`: which rewrite. Its fault is one of its words."""

    def __init__(self, way: str = "", wrong: str = "", drop: float = 0.0) -> None:
        super().__init__()
        self.way, self.wrong = way, wrong
        self.first, self.second = nn.LayerNorm(W), nn.LayerNorm(W)
        self.q, self.k, self.v, self.out = nn.Linear(W, W), nn.Linear(W, W // 2), nn.Linear(W, W // 2), nn.Linear(W, W)
        self.up, self.down, self.drop = nn.Linear(W, 24), nn.Linear(24, W), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.drop(getattr(self, f"{self.way}_attention", self.attention)(y))
        return x + getattr(self, f"{self.way}_feed", self.feed)(self.second(x))

    def feed(self, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(F.gelu(self.up(y)))
        return made

    def attention(self, y: torch.Tensor) -> torch.Tensor:
        q, k, v = heads(self.q(y)), *(heads(part(y)).repeat_interleave(2, 1) for part in (self.k, self.v))
        made: torch.Tensor = self.out(attended(q, k, v, SEEN))
        return made

    def kept_attention(self, y: torch.Tensor) -> torch.Tensor:
        """A token at a time, with a memory of fixed size."""
        slots, made = y.new_zeros(2, len(y), HEADS // 2, LENGTH, SIZE), []
        for place, row in enumerate(y.split(1, 1)):
            at = max(place - 1, 0) if self.wrong == "slot" and place == 5 else place
            new = torch.stack([heads(self.k(row)), heads(self.v(row))]).to(slots.dtype)
            slots = torch.cat([slots[:, :, :, :at], new, slots[:, :, :, at + 1 :]], 3)
            end = place if self.wrong == "old" and place else LENGTH if self.wrong == "empty" else place + 1
            k, v = slots[:, :, :, :end].to(row.dtype).repeat_interleave(2, 2)
            made.append(attended(heads(self.q(row)).to(v.dtype), k, v, torch.ones(1, end, dtype=torch.bool)))
        result: torch.Tensor = self.out(torch.cat(made, 1))
        return result

    def split_attention(self, y: torch.Tensor) -> torch.Tensor:
        """Two ranks with two heads each, whose results are added."""
        made: torch.Tensor | float = 0.0
        for rank in range(2):
            rows, keys = slice(8 * rank, 8 * rank + 8), slice(4 * rank, 4 * rank + 4)
            keys = slice(4 - 4 * rank, 8 - 4 * rank) if self.wrong == "keys" else keys
            q, k, v = (F.linear(y, part.weight[at], part.bias[at]) for part, at in ((self.q, rows), (self.k, keys), (self.v, keys)))
            part = F.linear(attended(heads(q), heads(k), heads(v), SEEN), self.out.weight[:, rows])
            made = made + part + (self.out.bias if self.wrong == "bias" else 0)
        assert isinstance(made, torch.Tensor)
        return made if self.wrong == "bias" else made + self.out.bias.to(made.dtype)

    def split_feed(self, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor | float = 0.0
        for rank in range(2):
            at = slice(12 * rank, 12 * rank + 12)
            hidden = F.linear(y, self.up.weight[at], self.up.bias[at])
            made = made + F.linear(hidden if self.wrong == "act" else F.gelu(hidden), self.down.weight[:, at])
        assert isinstance(made, torch.Tensor)
        made = F.gelu(made) if self.wrong == "act" else made
        return (made / 2 if self.wrong == "mean" else made) + self.down.bias.to(made.dtype)

    def added_attention(self, y: torch.Tensor) -> torch.Tensor:
        """A mask of numbers that is added to the scores."""
        least = -10.0 if self.wrong == "small" else torch.finfo(y.dtype).min
        mask = torch.zeros(LENGTH, LENGTH, dtype=y.dtype).masked_fill(~SEEN, least)
        mask = mask.T if self.wrong == "turned" else SEEN.to(y.dtype) if self.wrong == "truth" else mask
        q, k, v = heads(self.q(y)), *(heads(part(y)).repeat_interleave(2, 1) for part in (self.k, self.v))
        made: torch.Tensor = self.out(F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype)).transpose(1, 2).flatten(2))
        return made

    def fused_attention(self, y: torch.Tensor) -> torch.Tensor:
        """One product for queries, keys and values, and torch's groups of heads."""
        parts = (self.q, self.v, self.k) if self.wrong == "order" else (self.q, self.k, self.v)
        bias = torch.cat([part.bias * (self.wrong != "bias" or part is not self.k) for part in parts])
        bias = bias.roll(W) if self.wrong == "rolled" else bias
        q, k, v = F.linear(y, torch.cat([part.weight for part in parts]), bias).split([W, W // 2, W // 2], -1)
        k, v = heads(k), heads(v)
        made = F.scaled_dot_product_attention(heads(q), k, v.flip(1) if self.wrong == "group" else v, is_causal=True, enable_gqa=True)
        result: torch.Tensor = self.out(made.transpose(1, 2).flatten(2))
        return result

    def fused_feed(self, y: torch.Tensor) -> torch.Tensor:
        bias = self.up.bias.to(y.dtype)
        hidden = torch.addmm(bias, y.flatten(0, 1), self.up.weight.mT.to(y.dtype), beta=0.5 if self.wrong == "beta" else 1.0)
        return torch.addmm(self.down.bias.to(hidden.dtype), F.gelu(hidden), self.down.weight.mT.to(hidden.dtype)).unflatten(0, y.shape[:2])


def asked(way: str, wrong: str = "") -> Made:
    return ported(lambda: Net(Grouped), Net(Grouped, {"wrong": wrong}, way=way))


family("memory of fixed size", "a token at a time", lambda **bad: asked("kept", **bad), {
    "a slot that is overwritten": ({"wrong": "slot"}, B, ""), "the newest token is not seen": ({"wrong": "old"}, B, ""),
    "slots that are empty are seen": ({"wrong": "empty"}, B, ""),
})  # fmt: skip
family("heads over ranks", "added up", lambda **bad: asked("split", **bad), {
    "each rank adds the bias": ({"wrong": "bias"}, B, ""), "another rank's keys": ({"wrong": "keys"}, B, ""),
    "a slope after the sum": ({"wrong": "act"}, B, ""), "a mean over ranks": ({"wrong": "mean"}, B, ""),
})  # fmt: skip
family("masks of numbers", "added to scores", lambda **bad: asked("added", **bad), {
    "too small a number": ({"wrong": "small"}, B, ""), "turned round": ({"wrong": "turned"}, B, ""),
    "truth values as numbers": ({"wrong": "truth"}, B, ""),
})  # fmt: skip
family("one product for all", "of joined weights", lambda **bad: asked("fused", **bad), {
    "keys and values exchanged": ({"wrong": "order"}, B, ""), "biases of other rows": ({"wrong": "rolled"}, B, ""),
    "values of another group": ({"wrong": "group"}, B, ""), "half of a bias": ({"wrong": "beta"}, B, ""),
})  # fmt: skip


class Rotated(nn.Module):
    """Rotary attention, by neighbours or by halves, whose weights were permuted for it."""

    def __init__(self, pairs: bool = True) -> None:
        super().__init__()
        self.pairs = pairs
        self.norm, self.q, self.k, self.v, self.out = nn.LayerNorm(W), *(nn.Linear(W, W) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (heads(part(y)) for part in (self.q, self.k, self.v))
        return x + self.out(attended(turned(q, SIZE, self.pairs), turned(k, SIZE, self.pairs), v, SEEN))


def permuted(wrong: str = "") -> Made:
    """The rows of queries and keys, so that neighbours become halves. Wrongly in the second layer: `wrong` of the two keeps its order."""

    def convert(state: State) -> State:
        def halves(value: torch.Tensor, size: int) -> torch.Tensor:
            return value.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)

        for name in [name for name in state if ".q." in name or ".k." in name]:
            second = name.startswith("layers.1.")
            if not (second and (f".{wrong}." in name or name.endswith(f".{wrong}"))):
                state[name] = halves(state[name], 8 if second and wrong == "all" else SIZE)
        if wrong == "heads":
            state["layers.1.v.weight"] = state["layers.1.v.weight"].unflatten(0, (HEADS, SIZE)).flip(0).flatten(0, 1)
        return state

    return ported(lambda: Net(Rotated), Net(Rotated, pairs=False), convert=convert)


Q, K, V = ("layers.1.q", *B), ("layers.1.k", *B), ("layers.1.v", *B)
family("halves for neighbours", "permuted rows", permuted, {
    "queries keep their order": ({"wrong": "q"}, Q, ""), "keys keep their order": ({"wrong": "k"}, K, ""),
    "heads of another size": ({"wrong": "all"}, (*Q, *K), ""), "heads of values the other way": ({"wrong": "heads"}, V, ""),
})  # fmt: skip

SIZES = (5, 3, 1)
DOCUMENTS = torch.arange(3).repeat_interleave(torch.tensor(SIZES))


class Sliding(nn.Module):
    """Attention to the last four tokens, with places. `packed`: three documents in a row."""

    def __init__(self, packed: bool = False, window: int = 4, mixed: bool = False, on: bool = False, late: bool = False) -> None:
        super().__init__()
        self.packed, self.window, self.mixed, self.on, self.late = packed, window, mixed, on, late
        self.places = nn.Parameter(torch.zeros(LENGTH, W))
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen, at = (back >= 0) & (back < self.window), torch.arange(x.shape[1])
        if self.packed:
            ends = DOCUMENTS.roll(1) if self.late else DOCUMENTS
            seen = seen if self.mixed else seen & (ends[:, None] == ends)
            at = at if self.on else torch.cat([torch.arange(size) for size in SIZES])
        q, k, v = (heads(part) for part in self.qkv(self.norm(x + self.places[at].to(x.dtype))).chunk(3, -1))
        return x + self.out(attended(q, k, v, seen | (back == 0)))


class Rows(Net):
    """Documents with padding behind, whose results count nothing; `packed` in a row."""

    def __init__(self, second: dict[str, Any] | None = None, packed: bool = False, joined: bool = False) -> None:
        super().__init__(Sliding, second, packed=packed)
        self.packed, self.joined = packed, joined

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            rows = torch.stack([F.pad(part, (0, 0, 0, LENGTH - part.shape[1]))[0] for part in x.split(list(SIZES), 1)])
            made = super().forward(rows)
            return torch.cat([row[:size] for row, size in zip(made, SIZES, strict=True)])[None]
        return super().forward(x.flip(1) if self.joined else x)


def packed(**second: Any) -> Made:
    return ported(Rows, Rows(second, packed=True), numbers(1, LENGTH, 6))


family("windows in a row of documents", "packed", packed, {
    "the document before is seen": ({"mixed": True}, B, ""), "places that go on": ({"on": True}, B, ""), "ends one late": ({"late": True}, B, ""),
    "a window one too long": ({"window": 5}, B, ""),
})  # fmt: skip


def compiled(wrong: str = "", drop: bool = False, backend: str = "inductor") -> Made:
    torch.manual_seed(0)
    model, other = spread(Net(Grouped, drop=0.3)).eval(), Net(Grouped, {"wrong": wrong}, way="fused", drop=0.3).eval()
    other.load_state_dict(model.state_dict())
    other.layers[1].drop.train(drop)
    return model, torch.compile(other, backend=backend), ROWS, dict(MEAN)


family("a compiled port", "by Inductor", compiled, {
    "values of another group": ({"wrong": "group"}, B, ""), "a dropout that is on": ({"drop": True}, ("layers.1.drop", *B), ""),
    "half of a bias": ({"wrong": "beta"}, B, ""), "half of a bias, by graphs": ({"wrong": "beta", "backend": "aot_eager"}, B, ""),
}, by_graphs={"backend": "aot_eager"})  # fmt: skip
