"""A sixteenth batch, committed before the judge has seen it: decoders that keep keys, drafts in a tree, padding, documents, keys of eight bits.

Each network has two layers of attention in a residual stream, and a fault is in the second layer alone.
What keeps keys is called for each chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import Stream, numbers
from torch import nn

W, HEADS, GROUPS, SIZE, ROWS, LENGTH = 16, 4, 2, 8, 2, 11
LAST = "layers.1"


def turned(x: torch.Tensor, places: torch.Tensor, rates: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """Heads (batch, heads, length, size), turned by places (length) or (batch, length) as halves."""
    angles = (places[..., None] * rates).unsqueeze(-3)
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """By formulas. `seen`: (…, queries, keys)."""
    share = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(share, 1) for each in (k, v))
    scores = (q @ k.mT).float() * SIZE**-0.5 + bias
    return scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v


class Attend(nn.Module):
    """Heads of queries that share heads of keys. Families override `rates` and `mixed`."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.groups = HEADS if ways.get("each") else GROUPS
        self.q, self.k, self.v = nn.Linear(W, HEADS * SIZE), nn.Linear(W, self.groups * SIZE), nn.Linear(W, self.groups * SIZE)
        self.out = nn.Linear(HEADS * SIZE, W)

    def rates(self, length: int) -> torch.Tensor:
        return 100.0 ** -(torch.arange(0, SIZE, 2) / SIZE)

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return q, k, v

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        return self.out(self.mixed(x, *more).transpose(1, 2).flatten(2))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        places, rates = torch.arange(x.shape[1]), self.rates(x.shape[1])
        q, k, v = self.heads(x)
        return attended(turned(q, places, rates), turned(k, places, rates), v, places[:, None] >= places)


def pair(part: Callable[..., nn.Module], ways: dict[str, Any], bad: dict[str, Any] | None = None, stream: Any = Stream, inputs: Any = None) -> Made:
    torch.manual_seed(0)
    model, other = spread(Stream(part(), part())), stream(part(**ways), part(**{**ways, **(bad or {})}))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(ROWS, LENGTH, W) if inputs is None else inputs, dict(MEAN)


def entered(
    family: str, part: Callable[..., nn.Module], name: str, ways: dict[str, Any], faults: dict[str, dict[str, Any]], stream: Any = Stream
) -> None:
    healthy(family, name, lambda: pair(part, ways, stream=stream))
    for fault, bad in faults.items():
        broken(family, fault, lambda bad=bad: pair(part, ways, bad, stream), LAST)  # type: ignore[misc]


class Ring(Attend):
    """Sees the last four tokens. With a state it is called for a chunk, whose keys go into a ring of four."""

    def mixed(self, x: torch.Tensor, state: dict[str, Any] | None = None) -> torch.Tensor:
        q, k, v = self.heads(x)
        if state is None:
            places, rates = torch.arange(x.shape[1]), self.rates(0)
            far = places[:, None] - places
            return attended(turned(q, places, rates), turned(k, places, rates), v, (far >= 0) & (far < 4))
        begin = state.get("count", 0)
        places = torch.arange(begin, begin + x.shape[1])
        old = state.get("places", torch.full((4,), -9))
        keys, values = state.get("keys", k.new_zeros(len(k), GROUPS, 4, SIZE)), state.get("values", v.new_zeros(len(v), GROUPS, 4, SIZE))
        k = turned(k, places % 4 if self.ways.get("slots") else places, self.rates(0))
        slots = places % 4
        new_keys, new_values, new_places = keys.clone(), values.clone(), old.clone()
        new_keys[:, :, slots], new_values[:, :, slots], new_places[slots] = k, v, places
        read = (new_keys, new_values, new_places) if self.ways.get("early") else (keys, values, old)
        whole, held, at = torch.cat([read[0], k], 2), torch.cat([read[1], v], 2), torch.cat([read[2], places])
        if self.ways.get("early"):
            whole, held, at = read
        state.update(count=begin + x.shape[1], keys=new_keys, values=new_values, places=new_places)
        far = places[:, None] - at
        return attended(turned(q, places, self.rates(0)), whole, held, (far >= 0) & (far < (4 + self.ways.get("wide", 0))) & (at >= 0))


class Chunks(Stream):
    """Three tokens at a time, each layer with a state of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: list[dict[str, Any]] = [{} for _ in self.layers]
        made = []
        for chunk in x.split(3, 1):
            chunk = self.inside(chunk)
            for layer, state in zip(self.layers, states, strict=True):
                chunk = chunk + layer(chunk, state)
            made.append(self.head(self.norm(chunk)))
        return torch.cat(made, 1)


entered("a window in a ring", Ring, "three at a time", {}, {"written before it is read": {"early": True}, "keys at slots": {"slots": True}}, Chunks)


class Tree(Attend):
    """With a plan it is called for a prompt of seven and two drafts of four tokens, of which the second is right."""

    def mixed(self, x: torch.Tensor, drafted: bool = False) -> torch.Tensor:
        if not drafted:
            return super().mixed(x)
        places, wrong = torch.cat([torch.arange(11), torch.arange(7, 11)]), torch.arange(15)
        wrong = (wrong >= 7) & (wrong < 11)
        order = torch.arange(15)
        seen = (order[:, None] >= order) & (bool(self.ways.get("both")) | ~(wrong & ~wrong[:, None]))
        places = order if self.ways.get("counted") else places
        q, k, v = self.heads(x)
        return attended(turned(q, places, self.rates(0)), turned(k, places, self.rates(0)), v, seen)


class Drafts(Stream):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(torch.cat([x[:, :7], x[:, 7:].flip(-1), x[:, 7:]], 1))
        for layer in self.layers:
            x = x + layer(x, True)
        x = self.head(self.norm(x))
        return torch.cat([x[:, :7], x[:, 11:]], 1)


entered(
    "drafts in a tree",
    Tree,
    "two drafts at once",
    {},
    {"the other draft is seen": {"both": True}, "places count both drafts": {"counted": True}},
    Drafts,
)


class Slopes(Attend):
    """Scores fall with distance, by a slope for each head. `lengths`: rows are padded on the left."""

    def mixed(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.heads(x)
        places = torch.arange(x.shape[1])
        slopes = 2.0 ** -(8 / HEADS * torch.arange(1, HEADS + 1))[:, None, None]
        far = places if self.ways.get("keys") else -(places[:, None] - places)
        far = -far if self.ways.get("farther") else far
        seen = places[:, None] >= places
        if kept is not None:
            kept = kept.flip(-1) if self.ways.get("right") else kept
            seen = seen & kept[:, None, None] | torch.eye(len(places), dtype=torch.bool)
        return attended(q, k, v, seen, slopes * far)


class Padded(Stream):
    """The rows side by side: the second has four tokens of padding on the left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(LENGTH) >= torch.tensor([0, 4])[:, None]
        x = self.inside(x)
        for layer in self.layers:
            x = x + layer(x, kept)
        return self.head(self.norm(x)) * kept[..., None]


class Alone(Stream):
    """Row by row, without padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [super(Alone, self).forward(row[None, cut:]) for row, cut in zip(x, (0, 4), strict=True)]
        return torch.cat([rows[0], F.pad(rows[1], (0, 0, 4, 0))])


def padded(**bad: Any) -> Made:
    model, other, x, given = pair(Slopes, {"keys": True}, bad, Padded)
    alone = Alone(*(Slopes() for _ in range(2)))
    alone.load_state_dict(model.state_dict())
    return alone, other, x, given


healthy("slopes and padding", "slopes of keys, padded", padded)
broken("slopes and padding", "farther keys count more", lambda: padded(farther=True), LAST)
broken("slopes and padding", "a mask of the right", lambda: padded(right=True), LAST)


class Documents(Attend):
    """With ends it is called for all rows in one, by document. The rows have 11 and 6 tokens."""

    def mixed(self, x: torch.Tensor, ends: tuple[int, ...] = ()) -> torch.Tensor:
        if not ends:
            return super().mixed(x)
        q, k, v = self.heads(x)
        late = self.ways.get("late", 0)
        cuts, made = [0, *(end + late for end in ends[:-1]), ends[-1]], []
        for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
            places, (mine, theirs, values) = torch.arange(end - begin), (each[:, :, begin:end] for each in (q, k, v))
            mine, theirs = (turned(each, places + begin, self.rates(0)) for each in (mine, theirs))
            seen = (places[:, None] >= places) | bool(number and self.ways.get("open"))
            made.append(F.scaled_dot_product_attention(mine, theirs, values, seen, enable_gqa=True))
        return torch.cat(made, 2)


class Rows(Stream):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return torch.cat([made[0], made[1, :6]])


class Packed(Stream):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(torch.cat([x[0], x[1, :6]])[None])
        for layer in self.layers:
            x = x + layer(x, (11, 17))
        return self.head(self.norm(x))[0]


def packed(**bad: Any) -> Made:
    model, other, x, given = pair(Documents, {}, bad, Packed)
    rows = Rows(*model.layers)
    rows.load_state_dict(model.state_dict())
    return rows, other, x, given


healthy("documents in a row", "cut at their ends", packed)
broken("documents in a row", "an end one late", lambda: packed(late=1), LAST)
broken("documents in a row", "a document that sees ahead", lambda: packed(open=True), LAST)


def expanded(tiled: str = "", loss: bool = False) -> Made:
    """Keys and values for each head: a model without shared keys, which holds their weights several times."""
    torch.manual_seed(0)
    model: Any = spread(Stream(Attend(), Attend()))
    other: Any = Stream(Attend(each=True), Attend(each=True))
    held = model.state_dict()
    for name, value in held.items():
        if ".k." in name or ".v." in name:
            heads = value.unflatten(0, (GROUPS, SIZE))
            same = tiled and name.startswith(f"{LAST}.{tiled}")
            held[name] = (torch.cat([heads] * 2) if same else heads.repeat_interleave(2, 0)).flatten(0, 1)
    other.load_state_dict(held)
    return model, other, numbers(ROWS, LENGTH, W), dict(MEAN) if loss else {}


healthy("a key for each head", "weights repeated", expanded)
healthy("a key for each head", "weights repeated, with a loss", lambda: expanded(loss=True))
broken("a key for each head", "keys tiled", lambda: expanded("k"), LAST, f"{LAST}.k")
broken("a key for each head", "values tiled", lambda: expanded("v"), LAST, f"{LAST}.v")


class Coded(Attend):
    """Keys and values are kept as numbers of eight bits, with a scale for each token and head. `late`: scales are multiplied after the products."""

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        ways, places = self.ways, torch.arange(x.shape[1])
        q, k, v = self.heads(x)
        q, k = turned(q, places, self.rates(0)), turned(k, places, self.rates(0))
        axis = -2 if ways.get("channels") else -1
        steps = [each.float().abs().amax(axis if each is k else -1, keepdim=True).clamp(min=1e-6) / 127 for each in (k, v)]
        codes = [(each.float() / step).round() for each, step in zip((k, v), steps, strict=True)]
        seen = places[:, None] >= places
        if not ways.get("late"):
            return attended(q, *((code * step).to(x.dtype) for code, step in zip(codes, steps, strict=True)), seen)
        share = HEADS // GROUPS
        steps = steps[::-1] if ways.get("swapped") else steps
        if ways.get("channels"):
            codes[0], steps[0] = codes[0] * steps[0], torch.ones_like(steps[1])
        code, held = (each.to(torch.int8).float() if not ways.get("channels") else each for each in codes)
        q = q.float().unflatten(1, (-1, share))
        scores = torch.einsum("bgrtd,bgsd->bgrts", q, code) * steps[0].mT[:, :, None] * SIZE**-0.5
        shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("bgrts,bgsd->bgrtd", shares * steps[1].mT[:, :, None], held).flatten(1, 2).to(x.dtype)


def coded(**bad: Any) -> Made:
    return (*pair(Coded, {"late": True}, bad)[:3], {})


healthy("keys of eight bits", "scaled after the products", coded)
broken("keys of eight bits", "a scale for each channel", lambda: coded(channels=True), LAST)
broken("keys of eight bits", "scales of keys and values swapped", lambda: coded(swapped=True), LAST)
