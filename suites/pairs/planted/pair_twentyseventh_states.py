"""The twenty-seventh batch, second part: places on three axes for pictures among words, and a delta rule with decays.

The issues: sections that are chosen of one half (xllm 746), no places handed on (Megatron-LM 4938), places that begin anew in later chunks (mlx-vlm
1621), the decay after the update (flash-linear-attention 885), a gate before the norm (exllamav3 161).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, W, ported
from pair_twentyseventh import ATTEND, Block, family, rotated, visible
from torch import nn

IMAGE = 19
MIXED = torch.tensor([[3, 7, *[IMAGE] * 6, 5, 2, 11], [4, *[IMAGE] * 6, 9, 1, 8, 6]])
"""Words with a picture of two rows of three."""
PATCHES = numbers(2, 6, 5)
SECTIONS = (4, 2, 2)


def three(tokens: torch.Tensor, top: str = "") -> torch.Tensor:
    """Time, row and column of each token: (3, batch, length)."""
    found = []
    for row in tokens.tolist():
        places, now, seen = [], 0, 0
        for word in row:
            if word == IMAGE:
                down, along = divmod(seen, 3)
                places.append((now, now + (along if top == "exchanged" else down), now + (down if top == "exchanged" else along)))
                seen += 1
                now += (6 if top == "count" else 3) if seen == 6 else 0
            else:
                places.append((now, now, now))
                now += 1
        found.append(places)
    return torch.tensor(found).permute(2, 0, 1)


FREQUENCIES = 10.0 ** (-torch.arange(8) / 8)


class Three(nn.Module):
    """Attention that is turned by times, rows and columns, each of which has its section of the frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        angles = (places[..., None] * FREQUENCIES).split(SECTIONS, -1)
        angles = torch.cat([each[n] for n, each in enumerate(angles)], -1)
        scores = rotated(q, angles) @ rotated(k, angles).mT / 4
        return self.out(scores.masked_fill(~visible(x.shape[1]), -math.inf).softmax(-1) @ v)


class Seeing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.see, self.layers = nn.Embedding(20, W), nn.Linear(5, W), nn.ModuleList([Block(Three()) for _ in range(3)])
        self.norm, self.head = nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        seen, words = self.see(patches), self.words(tokens)
        x = words.masked_scatter((tokens == IMAGE)[..., None], seen.to(words.dtype))
        places = three(tokens)
        for layer in self.layers:
            x = layer(x, places)
        return self.head(self.norm(x))


class Tables(nn.Module):
    """Attention with tables of cosines and sines of all axes, repeated for both halves, and keys of earlier chunks."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.qkv, self.out = wrong, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def chosen(self, table: torch.Tensor) -> torch.Tensor:
        """The section of each axis."""
        if self.wrong == "time":
            return table[0]
        if self.wrong == "turns":  # as another model has them
            return torch.cat([table[n % 3, ..., n : n + 1] for n in range(W // 2)] * 2, -1)
        sections = (2, 2, 4) if self.wrong == "sections" else SECTIONS
        if self.wrong == "half":
            parts = table.split((*sections, 8), -1)
            return torch.cat([each[n % 3] for n, each in enumerate(parts)], -1)
        return torch.cat([each[n % 3] for n, each in enumerate(table.split(sections * 2, -1))], -1)

    def forward(self, x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor], kept: dict[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        cos, sin = (self.chosen(each).to(x.dtype) for each in table)
        q, k = (each * cos + torch.cat([-each[..., W // 2 :], each[..., : W // 2]], -1) * sin for each in (q, k))
        before = kept["k"].shape[1] if kept else 0
        for name, new in (("k", k), ("v", v)):
            kept[name] = torch.cat([kept[name], new.to(kept[name].dtype)], 1) if name in kept else new
        mask = visible(before + x.shape[1])[before:]
        return self.out(F.scaled_dot_product_attention(q, kept["k"].to(q.dtype), kept["v"].to(q.dtype), attn_mask=mask))


class Places(nn.Module):
    """The tables of cosines and sines, for places on three axes."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.register_buffer("frequencies", FREQUENCIES.clone(), persistent=False)

    def forward(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = 10.0 ** (-torch.arange(8) * 2 / W / 2) if self.wrong == "width" else self.frequencies
        angles = torch.cat([places[..., None] * frequencies] * 2, -1)
        return angles.cos(), angles.sin()


class Chunked(nn.Module):
    def __init__(self, chunk: int = 20, top: str = "", rotary: str = "", wrong: str = "") -> None:
        super().__init__()
        self.chunk, self.top, self.words, self.see, self.rotary = chunk, top, nn.Embedding(20, W), nn.Linear(5, W), Places(rotary)
        self.layers = nn.ModuleList([Block(Tables(wrong if n == 1 else "")) for n in range(3)])
        self.norm, self.head = nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        top, x, seen = self.top, self.words(tokens), self.see(patches)
        seen = seen.flip(0) if top == "rows" else seen.unflatten(1, (2, 3)).mT.flatten(1, 2).reshape(seen.shape) if top == "columns" else seen
        at = tokens == IMAGE
        x = x.index_put(at.nonzero(as_tuple=True), seen.flatten(0, 1).to(x.dtype))
        places = torch.arange(tokens.shape[1]).expand(3, len(tokens), -1) if top == "plain" else three(tokens, top)
        made, kept = [], [dict[str, torch.Tensor]() for _ in self.layers]
        for begun in range(0, tokens.shape[1], self.chunk):
            part = x[:, begun : begun + self.chunk]
            now = places[:, :, : part.shape[1]] if top == "anew" else places[:, :, begun : begun + self.chunk]
            if top == "delta" and begun:
                now = torch.arange(begun, begun + part.shape[1]).expand(3, len(tokens), -1)
            table = self.rotary(now)
            for layer, each in zip(self.layers, kept, strict=True):
                part = layer(part, table, each)
            made.append(part)
        return self.head(self.norm(torch.cat(made, 1)))


family("places on three axes", "tables of cosines", lambda **bad: ported(Seeing(), Chunked(**bad), (MIXED, PATCHES)), {
    "rows and columns exchanged": ({"top": "exchanged"}, TOP, ""), "words after a picture by the count": ({"top": "count"}, TOP, ""),
    "one place for all axes": ({"top": "plain"}, TOP, ""), "the other row's picture": ({"top": "rows"}, TOP, ""),
    "a picture by columns": ({"top": "columns"}, TOP, ""), "places anew in each chunk": ({"top": "anew", "chunk": 4}, TOP, ""),
    "later chunks without the picture's offset": ({"top": "delta", "chunk": 8}, TOP, ""), "time alone": ({"wrong": "time"}, ATTEND, ""),
    "other sections": ({"wrong": "sections"}, ATTEND, ""), "sections by turns": ({"wrong": "turns"}, ATTEND, ""),
    "sections of one half": ({"wrong": "half"}, ATTEND, ""), "frequencies of another width": ({"rotary": "width"}, ("rotary",), ""),
}, chunks_of_four={"chunk": 4}, single_words={"chunk": 1})  # fmt: skip


class Delta(nn.Module):
    """A state that decays and is corrected by each token, after filters of three taps. Two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.more, self.gate, self.out = nn.Linear(W, 3 * W), nn.Linear(W, 4), nn.Linear(W, W), nn.Linear(W, W)
        self.conv, self.norm = nn.Conv1d(3 * W, 3 * W, 3, groups=3 * W, padding=2), nn.RMSNorm(8, eps=1e-5)
        self.log, self.bias = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.conv(self.qkv(x).mT)[..., : x.shape[1]].mT)
        q, k, v = (each.unflatten(-1, (2, 8)) for each in y.chunk(3, -1))
        q, k = F.normalize(q, dim=-1) / math.sqrt(8), F.normalize(k, dim=-1)
        beta, step = self.more(x).chunk(2, -1)
        beta, decay = beta.sigmoid(), (-self.log.exp() * F.softplus(step + self.bias)).exp()
        state, made = q.new_zeros(len(x), 2, 8, 8), []
        for n in range(x.shape[1]):
            state = state * decay[:, n, :, None, None]
            error = v[:, n] - torch.einsum("bhk,bhkv->bhv", k[:, n], state)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, n], error * beta[:, n, :, None])
            made.append(torch.einsum("bhk,bhkv->bhv", q[:, n], state))
        y = self.norm(torch.stack(made, 1)).flatten(2)
        return self.out(y * F.silu(self.gate(x)))


class Carried:
    """What goes from one piece to the next: the last taps and the state of each layer."""

    def __init__(self) -> None:
        self.taps: dict[int, torch.Tensor] = {}
        self.states: dict[int, torch.Tensor] = {}


class Pieces(Delta):
    """The same for a piece of the row, with weights of all its tokens on each other at once."""

    def __init__(self, number: int, wrong: str = "") -> None:
        super().__init__()
        self.number, self.wrong = number, wrong
        self.conv.padding = (0,)

    def filtered(self, x: torch.Tensor, carried: Carried) -> tuple[torch.Tensor, ...]:
        y = self.qkv(x).mT
        before = carried.taps.get(self.number, y.new_zeros(len(y), 3 * W, 2))
        y = torch.cat([torch.zeros_like(before) if self.wrong == "taps" else before, y], -1)
        carried.taps[self.number] = y[..., -3:-1] if self.wrong == "late" else y[..., -2:]
        y = self.conv(y).mT
        return (y if self.wrong == "linear" else F.silu(y)).unflatten(-1, (3, 2, 8)).unbind(2)

    def forward(self, x: torch.Tensor, carried: Carried) -> torch.Tensor:
        wrong, (q, k, v) = self.wrong, self.filtered(x, carried)
        q, k = F.normalize(q, dim=-1) / (1 if wrong == "scale" else math.sqrt(8)), k if wrong == "keys" else F.normalize(k, dim=-1)
        beta, step = self.more(x).chunk(2, -1)
        beta, rate = beta if wrong == "beta" else beta.sigmoid(), step if wrong == "bias" else step + self.bias
        logs = (-self.log.exp() * F.softplus(rate)).cumsum(1)
        before = carried.states.get(self.number)
        before = v.new_zeros(len(x), 2, 8, 8) if before is None else before.to(v.dtype)
        weigh = (logs[:, :, None] - logs[:, None]).masked_fill(~visible(x.shape[1])[..., None], -math.inf).exp()
        alike = torch.einsum("bthk,bshk->btsh", k, k)
        known = torch.einsum("bthk,bhkv->bthv", k * (1 if wrong == "undecayed" else logs.exp()[..., None]), before)
        errors = list[torch.Tensor]()
        for n in range(x.shape[1]):
            error = v[:, n] - known[:, n]
            for m in range(n):
                share = weigh[:, n - 1 if wrong == "decay" else n, m]  # what is written decays after the error is taken
                error = error - (share * alike[:, n, m])[..., None] * errors[m]
            errors.append(error * beta[:, n, :, None])
        fresh = torch.stack(errors, 1)
        made = torch.einsum("btsh,bthk,bshk,bshv->bthv", weigh, q, k, fresh)
        made = made + torch.einsum("bthk,bhkv->bthv", q * logs.exp()[..., None], before)
        last = (logs[:, -1:] - logs).exp()
        carried.states[self.number] = torch.einsum("bsh,bshk,bshv->bhkv", last, k, fresh) + before * logs[:, -1].exp()[..., None, None]
        gate = F.silu(self.gate(x))
        if wrong == "gate":
            return self.out(self.norm(made * gate.unflatten(-1, (2, 8))).flatten(2))
        return self.out(self.norm(made).flatten(2) * (gate.sigmoid() if wrong == "sigmoid" else gate))


class Deltas(nn.Module):
    def __init__(self, piece: int = 0, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.piece, self.top, self.inside, self.head = piece, top, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Block(Pieces(n, wrong if n == 1 else "") if piece else Delta()) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, carried, made = self.inside(x), Carried(), []
        for number, part in enumerate(x.split(self.piece or x.shape[1], 1)):
            if self.top == "states" and number == 2:
                carried.states.clear()
            if self.top == "reads" and number:
                carried.taps[1] = carried.taps[0]
            for layer in self.layers:
                part = layer(part, carried) if self.piece else layer(part)
            made.append(part)
        return self.head(torch.cat(made, 1))


ROW = numbers(2, 10, 6)
family("a delta rule", "all at once", lambda **bad: ported(Deltas(), Deltas(**{"piece": 10, **bad}), ROW), {
    "the decay after the update": ({"wrong": "decay"}, ATTEND, ""), "keys not normalised": ({"wrong": "keys"}, ATTEND, ""),
    "queries not scaled": ({"wrong": "scale"}, ATTEND, ""), "strengths without sigmoid": ({"wrong": "beta"}, ATTEND, ""),
    "rates without a bias": ({"wrong": "bias"}, ATTEND, ""), "filters that are not bent": ({"wrong": "linear"}, ATTEND, ""),
    "the gate before the norm": ({"wrong": "gate"}, ATTEND, ""), "a gate bent twice": ({"wrong": "sigmoid"}, ATTEND, ""),
    "taps forgotten between pieces": ({"wrong": "taps", "piece": 4}, ATTEND, ""), "taps one late": ({"wrong": "late", "piece": 4}, ATTEND, ""),
    "a state that does not decay": ({"wrong": "undecayed", "piece": 4}, ATTEND, ""),
    "states emptied before the third piece": ({"top": "states", "piece": 4}, TOP, ""),
    "taps of another layer": ({"top": "reads", "piece": 4}, TOP, ""),
}, pieces_of_four={"piece": 4}, single_rows={"piece": 1})  # fmt: skip
