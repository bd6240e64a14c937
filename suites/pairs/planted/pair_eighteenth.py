"""An eighteenth batch, committed before the judge has seen any of it: attention of published models beside ports.

Sinks, capped scores, pages of keys, heads on two ranks, norms of queries, gates, relative positions, windows in blocks. A fault is in the second
layer alone.
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

W, HEADS, GROUPS, SIZE, ROWS, LENGTH = 16, 4, 2, 8, 2, 12
LAST = "layers.1"
Part = Callable[..., nn.Module]
State = dict[str, torch.Tensor]


def made(
    mine: Part, theirs: Part, bad: dict[str, Any], *, stream: Any = Stream, port: Any = None, inputs: Any = None,
    convert: Callable[..., State] | None = None, given: dict[str, Any] | None = None,
) -> Made:  # fmt: skip
    """Two layers of `model`, and two of the port, of which the second has the fault. `convert` makes the port's weights, and may have the fault."""
    torch.manual_seed(0)
    model: Any = spread(stream(mine(), mine()))
    wrong = bad.pop("weights", None) if "weights" in bad else None
    other: Any = (port or stream)(theirs(), theirs(**bad))
    state = dict(model.state_dict())
    other.load_state_dict(convert(state, wrong) if convert else state)
    return model, other, numbers(ROWS, LENGTH, W) if inputs is None else inputs, dict(MEAN) if given is None else given


def entered(family: str, way: str, mine: Part, theirs: Part, faults: dict[str, tuple[dict[str, Any], str]], **more: Any) -> None:
    """A healthy pair, and broken ones. With each fault stands the part of the second layer that may be named too, or ""."""
    healthy(family, way, lambda: made(mine, theirs, {}, **more))
    for fault, (bad, part) in faults.items():
        names = {LAST, f"{LAST}.{part}" if part else LAST}
        broken(family, fault, lambda bad=bad: made(mine, theirs, dict(bad), **more), *names)  # type: ignore[misc]


def causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Heads(nn.Module):
    """Queries of four heads and keys of two. Families override `mixed`, which gets them as (batch, heads, length, size)."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.q, self.k, self.v = nn.Linear(W, HEADS * SIZE), nn.Linear(W, GROUPS * SIZE), nn.Linear(W, GROUPS * SIZE)
        self.out = nn.Linear(HEADS * SIZE, W)

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(self.mixed(q, *(each.repeat_interleave(HEADS // GROUPS, 1) for each in (k, v)), *more).transpose(1, 2).flatten(2))

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Sink(Heads):
    """A learned score for each head that no value has."""

    def __init__(self, **ways: Any) -> None:
        super().__init__(**ways)
        self.sinks = nn.Parameter(torch.ones(HEADS))

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT * SIZE**-0.5).masked_fill(~causal(q.shape[2]), -math.inf)
        sink = self.sinks[:, None, None].expand(len(q), -1, q.shape[2], 1).to(scores.dtype)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(v.dtype) @ v


class SinkAfter(Sink):
    """Plain attention, whose result is weighed by the share that the sink leaves."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT * SIZE**-0.5).masked_fill(~causal(q.shape[2]), -math.inf)
        sinks = self.sinks.view(2, 2).mT.flatten() if self.ways.get("grouped") else self.sinks
        sinks = torch.zeros_like(sinks) if self.ways.get("zero") else sinks * SIZE**-0.5 if self.ways.get("scaled") else sinks
        left = (scores.logsumexp(-1, keepdim=True) - sinks[:, None, None]).sigmoid()
        return (scores.softmax(-1) * left).to(v.dtype) @ v


entered("sinks", "weighed afterwards", Sink, SinkAfter, {
    "scaled as scores": ({"scaled": True}, ""), "in the order of groups": ({"grouped": True}, ""), "a sink of zero": ({"zero": True}, ""),
})  # fmt: skip


class Capped(Heads):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = 3 * torch.tanh(q @ k.mT * 5**-0.5 / 3)
        return scores.masked_fill(~causal(q.shape[2]), -math.inf).softmax(-1).to(v.dtype) @ v


class CappedPort(Heads):
    """Scaled queries, a cap by exp, and a mask that is added."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(q.shape[2], q.shape[2]).masked_fill(~causal(q.shape[2]), -1e4).to(q.dtype)
        scores = (q * (SIZE if self.ways.get("size") else 5) ** -0.5) @ k.mT
        if self.ways.get("early"):
            scores = scores + mask
        cap = 3.0 if not self.ways.get("none") else 1e3
        scores = cap * (2 * torch.sigmoid(2 * scores / cap) - 1)
        return (scores if self.ways.get("early") else scores + mask).softmax(-1).to(v.dtype) @ v


entered("capped scores", "by a sigmoid", Capped, CappedPort, {
    "the mask before the cap": ({"early": True}, ""), "scaled by the size of heads": ({"size": True}, ""), "no cap": ({"none": True}, ""),
})  # fmt: skip


class Paged(Heads):
    """Four tokens at a time. Keys lie in pages as (page, groups, size / 2, slot, 2), values as (page, groups, size, slot), pages in any order."""

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        ways, table = self.ways, torch.tensor([[4, 1, 3], [0, 5, 2]])
        keys = torch.zeros(6, GROUPS, SIZE // 2, 4, 2, dtype=self.k.weight.dtype)
        values = torch.zeros(6, GROUPS, SIZE, 4, dtype=self.v.weight.dtype)
        made = []
        for number, piece in enumerate(x.split(3, 1)):
            q, k, v = (part(piece).unflatten(-1, (-1, SIZE)) for part in (self.q, self.k, self.v))
            places = torch.arange(3 * number, 3 * number + 3)
            pages, slots = table[:, places // 4], places % 4
            keys, values = keys.clone(), values.clone()
            for row in range(len(x)):
                for place in range(3):
                    keys[pages[row, place], :, :, slots[place]] = k[row, place].unflatten(-1, (-1, 2)).to(keys.dtype)
                    values[pages[row, place], :, :, slots[place]] = v[row, place].to(values.dtype)
            held = keys[table]  # batch, pages, groups, size / 2, slot, 2
            held = held.permute(0, 2, 1, 4, 5, 3) if ways.get("halves") else held.permute(0, 2, 1, 4, 3, 5)
            held = held.flatten(4).flatten(2, 3)
            read = values[table.flip(0) if ways.get("rows") else table].permute(0, 2, 1, 4, 3).flatten(2, 3)
            seen = torch.arange(12) <= places[:, None]
            if ways.get("stale"):
                seen = torch.arange(12) < (int(places[-1]) // 4 + 1) * 4
            held, read = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (held, read))
            scores = (q.transpose(1, 2) @ held.mT * SIZE**-0.5).masked_fill(~seen, -math.inf)
            made.append((scores.softmax(-1).to(read.dtype) @ read).transpose(1, 2).flatten(2))
        return self.out(torch.cat(made, 1))


entered("pages of keys", "three at a time", Heads, Paged, {
    "pairs of keys read as halves": ({"halves": True}, ""), "values of the other row": ({"rows": True}, ""),
    "slots that are not written yet": ({"stale": True}, ""),
})  # fmt: skip


class Ranks(Heads):
    """Two ranks, each with two heads of queries and one of keys, whose results are added up."""

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        ways, made = self.ways, []
        for rank in range(2):
            own = 1 - rank if ways.get("keys") else rank
            q = F.linear(x, self.q.weight.chunk(2)[rank], self.q.bias.chunk(2)[rank])
            k, v = (F.linear(x, part.weight.chunk(2)[own], part.bias.chunk(2)[own]) for part in (self.k, self.v))
            q, k, v = (each.unflatten(-1, (-1, SIZE)).transpose(1, 2) for each in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
            made.append(F.linear(mixed, self.out.weight.chunk(2, 1)[rank], self.out.bias if ways.get("bias") else None))
        total = sum(made) / 2 if ways.get("mean") else sum(made)
        return total if ways.get("bias") else total + self.out.bias  # type: ignore[no-any-return]


entered("heads on two ranks", "added up", Heads, Ranks, {
    "a bias from each rank": ({"bias": True}, ""), "keys of the other rank": ({"keys": True}, ""), "the mean of ranks": ({"mean": True}, ""),
})  # fmt: skip


def rotated(x: torch.Tensor) -> torch.Tensor:
    angles = (torch.arange(x.shape[2])[:, None] * 50.0 ** -(torch.arange(0, SIZE, 2) / SIZE)).to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class Normed(Heads):
    """A norm for each head of queries and keys, before they are turned."""

    def __init__(self, **ways: Any) -> None:
        super().__init__(**ways)
        self.q_norm, self.k_norm = nn.RMSNorm(SIZE, 1e-5), nn.RMSNorm(SIZE, 1e-5)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(rotated(self.q_norm(q)), rotated(self.k_norm(k)), v, is_causal=True)


class NormedPort(Normed):
    def norm(self, x: torch.Tensor, part: nn.RMSNorm) -> torch.Tensor:
        square = x.square().mean((1, 3) if self.ways.get("whole") else -1, keepdim=True)
        return x * (square + (1e-2 if self.ways.get("eps") else 1e-5)).rsqrt() * part.weight

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = (self.k_norm, self.q_norm) if self.ways.get("swapped") else (self.q_norm, self.k_norm)
        if self.ways.get("late"):
            q, k = (self.norm(rotated(each), part) for each, part in zip((q, k), parts, strict=True))
        else:
            q, k = (rotated(self.norm(each, part)) for each, part in zip((q, k), parts, strict=True))
        return F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)


entered("norms of queries", "by formulas", Normed, NormedPort, {
    "one norm for all heads": ({"whole": True}, ""), "after they are turned": ({"late": True}, ""), "norms swapped": ({"swapped": True}, ""),
    "an eps of 1e-2": ({"eps": True}, ""),
})  # fmt: skip


class Far(Heads):
    """Scores by content and by distance, each with a bias of queries. `shifted`: distances by padding and a view."""

    def __init__(self, **ways: Any) -> None:
        super().__init__(**ways)
        self.far = nn.Linear(W, HEADS * SIZE, bias=False)
        self.u, self.w = (nn.Parameter(torch.zeros(HEADS, 1, SIZE)) for _ in range(2))

    def waves(self, places: torch.Tensor) -> torch.Tensor:
        angles = places[:, None] * 50.0 ** -(torch.arange(0, W, 2) / W)
        return self.far(torch.cat([angles.sin(), angles.cos()], -1).to(self.far.weight.dtype)).unflatten(-1, (HEADS, SIZE)).transpose(0, 1)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[2]
        if not self.ways:
            far = torch.arange(length)[:, None] - torch.arange(length)
            near = (q + self.w) @ self.waves(torch.arange(length)).mT
            near = near.gather(-1, far.clamp(min=0).expand_as(near))
        else:
            near = (q + self.w) @ self.waves(torch.arange(length - 1, -1, -1) if not self.ways.get("turned") else torch.arange(length)).mT
            near = F.pad(near, (1, 0)).flatten(-2)[..., length:].unflatten(-1, (length, length))
            near = near.roll(1, -1) if self.ways.get("late") else near
        scores = ((q if self.ways.get("plain") else q + self.u) @ k.mT + near) * SIZE**-0.5
        return scores.masked_fill(~causal(length), -math.inf).softmax(-1).to(v.dtype) @ v


def shifted(**bad: Any) -> Far:
    return Far(shifted=True, **bad)


entered("relative distances", "a pad and a view", Far, shifted, {
    "one late": ({"late": True}, ""), "no bias of content": ({"plain": True}, ""), "nearest first": ({"turned": True}, ""),
})  # fmt: skip


class Window(Heads):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        far = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, (far >= 0) & (far < 4))


class Blocks(Heads):
    """Blocks of four queries, each with its own keys and those of the block before."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(2, (-1, 4)) for each in (q, k, v))
        k, v = (torch.cat([each.roll(1, 2), each], 3) for each in (k, v))
        far = torch.arange(4)[:, None] + 4 - torch.arange(8)
        seen = ((far >= 0) & (far < (3 if self.ways.get("short") else 4))).expand(q.shape[2], 4, 8).clone()
        if not self.ways.get("round"):
            seen[0, :, :4] = False
        return F.scaled_dot_product_attention(q, k, v, seen).flatten(2, 3)


entered("windows in blocks", "with the block before", Window, Blocks, {
    "the first block sees the last": ({"round": True}, ""), "a window of three": ({"short": True}, ""),
})  # fmt: skip
