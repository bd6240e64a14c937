"""A twelfth batch, second part: caches, drafts that are tried at once, attention in parts, scans in chunks, gates.

Faults as such loops have them: positions of slots, drafts that stay in the cache, a decay that is left out between chunks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import broken, healthy
from pair_twelfth import HEADS, SECOND, SIZE, W, two
from torch import nn


def heads(x: torch.Tensor, many: int = HEADS) -> torch.Tensor:
    return x.unflatten(-1, (many, SIZE)).transpose(1, 2)


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotary positions on halves. `x`: (batch, heads, length, size)."""
    angles = places[:, None] * 10.0 ** -(torch.arange(SIZE // 2) / 2)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(x.dtype)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT).float() / math.sqrt(SIZE)
    return scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype) @ v


class Loop(nn.Module):
    """Attention that sees the last 4 tokens. `kind`: all tokens at once, or a token at a time with a `ring`, `pages`, a cache that `slides`, or
    `drafts` of two tokens, of which the first try is thrown away."""

    def __init__(self, kind: str = "at once", window: int = 4, by_slot: bool = False, kept: bool = False, stale: bool = False) -> None:
        super().__init__()
        self.kind, self.window, self.by_slot, self.kept, self.stale = kind, window, by_slot, kept, stale
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, -1))
        q = turned(q, places)
        if self.kind == "at once":
            far = places[:, None] - places
            made = attended(q, turned(k, places), v, (far >= 0) & (far < self.window))
        else:
            made = torch.cat(getattr(self, self.kind)(q, k, v), 2)
        return self.out(made.transpose(1, 2).flatten(2))

    def ring(self, q: Any, k: Any, v: Any) -> list[torch.Tensor]:
        keys, values = (torch.zeros(*each.shape[:2], self.window, SIZE, dtype=each.dtype) for each in (k, v))
        made = []
        for place in range(q.shape[2]):
            slot = torch.tensor([place % self.window])
            at = slot if self.by_slot else torch.tensor([place])
            keys = keys.index_copy(2, slot, turned(k[:, :, place : place + 1], at))
            values = values.index_copy(2, slot, v[:, :, place : place + 1])
            made.append(attended(q[:, :, place : place + 1], keys, values, torch.arange(self.window) <= place))
        return made

    def slides(self, q: Any, k: Any, v: Any) -> list[torch.Tensor]:
        k, made = turned(k, torch.arange(q.shape[2])), []
        for place in range(q.shape[2]):
            begin = max(0, place - self.window + 1)
            made.append(attended(q[:, :, place : place + 1], k[:, :, begin : place + 1], v[:, :, begin : place + 1], torch.tensor(True)))
        return made

    def pages(self, q: Any, k: Any, v: Any) -> list[torch.Tensor]:
        table = torch.tensor([[2, 0, 3, 1], [1, 3, 0, 2]])  # of each row, the pages of two tokens
        batch, slots = torch.arange(len(q))[:, None], torch.arange(q.shape[2])
        where = table[:, slots // 2] * 2 + slots % 2
        pool = torch.zeros(2, len(q), 8, HEADS, SIZE, dtype=k.dtype)
        made = []
        k = turned(k, slots)
        for place in range(q.shape[2]):
            now = where[:, place]
            fresh = torch.stack([k[:, :, place], v[:, :, place]])
            pool = pool.index_put((torch.arange(2)[:, None], batch[None, :, 0], now[None]), fresh)
            begin = max(0, place - self.window + 1)
            read = torch.arange(begin // 2 * 2, place // 2 * 2 + 2)
            keys, values = pool[:, batch, where[:, read]].transpose(2, 3)
            seen = (read >= begin) & ((read <= place) | self.stale)
            made.append(attended(q[:, :, place : place + 1], keys, values, seen))
        return made

    def drafts(self, q: Any, k: Any, v: Any) -> list[torch.Tensor]:
        k, made = turned(k, torch.arange(q.shape[2])), []
        keys = values = k[:, :, :0]
        for place in range(0, q.shape[2], 2):
            drafts = [torch.cat([held, part[:, :, place : place + 2].flip(2)], 2) for held, part in ((keys, k), (values, v))]
            if self.kept and place == 4:  # the draft was wrong, and stays
                keys, values = drafts
            keys, values = (torch.cat([held, part[:, :, place : place + 2]], 2) for held, part in ((keys, k), (values, v)))
            far = torch.arange(keys.shape[2] - 2, keys.shape[2])[:, None] - torch.arange(keys.shape[2])
            made.append(attended(q[:, :, place : place + 2], keys, values, (far >= 0) & (far < self.window)))
        return made


class Parts(nn.Module):
    """Causal attention whose first token is a sink. `kind`: at once, in `blocks` of keys whose shares are joined, or by `ranks` that pass keys on."""

    def __init__(self, kind: str = "at once", joined: bool = True, local: bool = False, sink: bool = True, scaled: bool = True) -> None:
        super().__init__()
        self.kind, self.joined, self.local, self.sink, self.scaled = kind, joined, local, sink, scaled
        self.qkv, self.out, self.level = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Parameter(torch.zeros(HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each) for each in self.qkv(x).chunk(3, -1))
        level, places = self.level.float()[:, None, None], torch.arange(x.shape[1])
        if self.kind == "at once":
            scores = ((q @ k.mT).float() / math.sqrt(SIZE)).masked_fill(places[:, None] < places, -math.inf)
            scores = torch.cat([scores, level.expand(len(x), HEADS, x.shape[1], 1)], -1)
            made = scores.softmax(-1)[..., :-1].to(v.dtype) @ v
        elif self.kind == "blocks":
            parts = [self.part(q, each_k, each_v, seen) for each_k, each_v, seen in zip(
                k.split(3, 2), v.split(3, 2), (places[:, None] >= places).split(3, 1), strict=True)]  # fmt: skip
            logs = torch.stack([log for _, log in parts])
            whole = torch.cat([logs, level.expand(logs.shape[1:])[None]]) if self.sink else logs
            shares = (logs - whole.logsumexp(0)).exp() if self.joined else torch.full_like(logs, 1 / len(logs))
            made = sum(share * each for share, (each, _) in zip(shares, parts, strict=True)).to(v.dtype)  # type: ignore[union-attr]
        else:
            made = torch.cat([self.rank(rank, q, k, v, level) for rank in range(4)], 2)
        return self.out(made.transpose(1, 2).flatten(2))

    def part(self, q: Any, k: Any, v: Any, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = ((q @ k.mT).float() / math.sqrt(SIZE)).masked_fill(~seen, -1e30)
        log = scores.logsumexp(-1, keepdim=True)
        return (scores - log).exp() @ v.float(), log

    def rank(self, rank: int, q: Any, k: Any, v: Any, level: torch.Tensor) -> torch.Tensor:
        """Rows of one of four ranks, which gets the keys of the ranks before it one after another."""
        mine = slice(2 * rank, 2 * rank + 2)
        most, sums, made = level.expand(len(q), HEADS, 2, 1), torch.ones(len(q), HEADS, 2, 1), torch.zeros(len(q), HEADS, 2, SIZE)
        for step in range(rank + 1):
            theirs = slice(2 * (rank - step), 2 * (rank - step) + 2)
            scores = (q[:, :, mine] @ k[:, :, theirs].mT).float() / math.sqrt(SIZE)
            if step == 0 or self.local:
                scores = scores.masked_fill(torch.ones(2, 2).triu(1).bool(), -math.inf)
            new = torch.maximum(most, scores.amax(-1, keepdim=True))
            shares, old = (scores - new).exp(), (most - new).exp()
            sums = sums * old + shares.sum(-1, keepdim=True)
            made = made * (old if self.scaled else 1) + shares @ v[:, :, theirs].float()
            most = new
        return (made / sums).to(v.dtype)


class States(nn.Module):
    """A state-space layer with a decay for each step. `kind`: step by step, as one matrix, or in chunks of three steps."""

    def __init__(self, kind: str = "steps", between: bool = True, early: bool = True, skipped: bool = True) -> None:
        super().__init__()
        self.kind, self.between, self.early, self.skipped = kind, between, early, skipped
        self.bc, self.v, self.rate, self.out = nn.Linear(W, 2 * W), nn.Linear(W, W), nn.Linear(W, HEADS), nn.Linear(W, W)
        self.skip = nn.Parameter(torch.ones(HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c = (heads(each).float() for each in self.bc(x).chunk(2, -1))
        v, logs = heads(self.v(x)).float(), -F.softplus(self.rate(x).float()).mT  # (batch, heads, length)
        made = getattr(self, self.kind)(b, c, v, logs)
        made = made + self.skip.float()[:, None, None] * v if self.skipped else made
        return self.out(made.transpose(1, 2).flatten(2).to(x.dtype))

    def steps(self, b: Any, c: Any, v: Any, logs: torch.Tensor) -> torch.Tensor:
        state, made = torch.zeros(*b.shape[:2], SIZE, SIZE), []
        for place in range(b.shape[2]):
            state = state * logs[:, :, place, None, None].exp() + b[:, :, place, :, None] * v[:, :, place, None, :]
            made.append((c[:, :, place, None, :] @ state)[:, :, 0])
        return torch.stack(made, 2)

    def matrix(self, b: Any, c: Any, v: Any, logs: torch.Tensor) -> torch.Tensor:
        length = b.shape[2]
        along = logs.cumsum(-1)
        far = (along[..., :, None] - along[..., None, :]).masked_fill(torch.ones(length, length).triu(1 if self.early else 0).bool(), -math.inf)
        return (c @ b.mT * far.exp()) @ v

    def chunks(self, b: Any, c: Any, v: Any, logs: torch.Tensor) -> torch.Tensor:
        state, made = torch.zeros(*b.shape[:2], SIZE, SIZE), []
        for begin in range(0, b.shape[2], 3):
            part = slice(begin, begin + 3)
            along = logs[:, :, part].cumsum(-1)
            inside = self.matrix(b[:, :, part], c[:, :, part], v[:, :, part], logs[:, :, part])
            made.append(inside + (c[:, :, part] * along.exp()[..., None]) @ state)
            rest = (along[..., -1:] - along).exp()[..., None]
            state = state * (along[..., -1].exp()[..., None, None] if self.between else 1) + (b[:, :, part] * rest).mT @ v[:, :, part]
        return torch.cat(made, 2)


class Deltas(nn.Module):
    """A memory that is corrected by what it does not yet hold. `kind`: step by step, or all steps by a triangular system."""

    def __init__(self, kind: str = "steps", rated: bool = True) -> None:
        super().__init__()
        self.kind, self.rated, self.qkv, self.rate, self.out = kind, rated, nn.Linear(W, 3 * W), nn.Linear(W, HEADS), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(each).float() for each in self.qkv(x).chunk(3, -1))
        k, rate = F.normalize(k, dim=-1), self.rate(x).float().sigmoid().mT[..., None]
        if self.kind == "steps":
            state, rows = torch.zeros(*k.shape[:2], SIZE, SIZE), []
            for place in range(k.shape[2]):
                key = k[:, :, place, None]
                state = state + key.mT @ (rate[:, :, place, None] * (v[:, :, place, None] - key @ state))
                rows.append(q[:, :, place, None] @ state)
            made = torch.cat(rows, 2)
        else:
            system = torch.eye(k.shape[2]) + ((rate if self.rated else 1) * (k @ k.mT)).tril(-1)
            new = torch.linalg.solve_triangular(system, rate * v, upper=False, unitriangular=True)
            made = (q @ k.mT).tril() @ new
        return self.out(made.transpose(1, 2).flatten(2).to(x.dtype))


class Gates(nn.Module):
    """A recurrent layer. `kind`: torch's, or by hand. `after`: whether the gate comes after the product. `order`: of the parts of the weights."""

    def __init__(self, kind: str = "torch", after: bool = True, order: tuple[int, int, int] = (0, 1, 2), back: bool = True) -> None:
        super().__init__()
        self.kind, self.after, self.order, self.back = kind, after, order, back
        self.cell, self.out = nn.GRU(W, W // 2, batch_first=True, bidirectional=True), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "torch":
            return self.out(self.cell(x)[0])
        ways = [self.way(x, ""), self.way(x.flip(1), "_reverse")]
        return self.out(torch.cat([ways[0], ways[1].flip(1) if self.back else ways[1]], -1))

    def way(self, x: torch.Tensor, name: str) -> torch.Tensor:
        inside, again, bias, more = (getattr(self.cell, f"{each}_l0{name}") for each in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        state, made = torch.zeros(len(x), W // 2, dtype=x.dtype), []
        for step in F.linear(x, inside, bias).unbind(1):
            r, z, n = (step.chunk(3, -1)[place] for place in self.order)
            hr, hz, hn = (F.linear(state, again, more).chunk(3, -1)[place] for place in self.order)
            r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            inner = r * hn if self.after else F.linear(r * state, again.chunk(3)[2], more.chunk(3)[2])
            state = (1 - z) * torch.tanh(n + inner) + z * state
            made.append(state)
        return torch.stack(made, 1)


class Placed(nn.Module):
    """Attention on a grid of 2 by 4, turned by rows and columns. `kind`: by complex numbers, halves, or neighbours."""

    def __init__(self, kind: str = "complex", swapped: bool = False, base: float = 100.0) -> None:
        super().__init__()
        self.kind, self.swapped, self.base, self.qk, self.v = kind, swapped, base, nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (self.turned(each.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)) for each in self.qk(x).chunk(2, -1))
        scores = (q.float() @ k.float().mT) / math.sqrt(SIZE)
        made = scores.softmax(-1).to(x.dtype) @ self.v(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        return made.transpose(1, 2).flatten(2)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.base ** -(torch.arange(2) / 2)
        rows, columns = torch.arange(8) // 4, torch.arange(8) % 4
        rows, columns = (columns, rows) if self.swapped else (rows, columns)
        angles = torch.cat([rows[:, None] * rate, columns[:, None] * rate], -1)
        pairs = x.float().unflatten(-1, (4, 2))
        if self.kind == "complex":
            return torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(8, 4), angles)).flatten(-2).to(x.dtype)
        if self.kind == "halves":
            a, b = pairs.unbind(-1)
            whole = torch.cat([a, b], -1)
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            return (whole * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)
        turns = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).unflatten(-1, (2, 2))
        return torch.einsum("tfij,bhtfj->bhtfi", turns, pairs).flatten(-2).to(x.dtype)


for kind in ("ring", "slides", "pages", "drafts"):
    healthy("a token at a time", kind, two(Loop, kind=kind))
broken("a token at a time", "positions of slots", two(Loop, kind="ring", bad_by_slot=True), SECOND)
broken("a token at a time", "a window of five", two(Loop, kind="slides", bad_window=5), SECOND)
broken("a token at a time", "what a page held before", two(Loop, kind="pages", bad_stale=True), SECOND)
broken("a token at a time", "a draft that stays", two(Loop, kind="drafts", bad_kept=True), SECOND)
healthy("attention in parts", "blocks of keys", two(Parts, kind="blocks"))
healthy("attention in parts", "ranks in a ring", two(Parts, kind="ranks"))
broken("attention in parts", "the mean of blocks", two(Parts, kind="blocks", bad_joined=False), SECOND)
broken("attention in parts", "without the sink", two(Parts, kind="blocks", bad_sink=False), SECOND)
broken("attention in parts", "each rank's own mask for all", two(Parts, kind="ranks", bad_local=True), SECOND)
broken("attention in parts", "old sums not scaled", two(Parts, kind="ranks", bad_scaled=False), SECOND)
healthy("states", "one matrix", two(States, kind="matrix"))
healthy("states", "chunks of three", two(States, kind="chunks"))
broken("states", "no decay between chunks", two(States, kind="chunks", bad_between=False), SECOND)
broken("states", "without the step itself", two(States, kind="matrix", bad_early=False), SECOND)
broken("states", "without the direct path", two(States, kind="chunks", bad_skipped=False), SECOND)
healthy("corrected memory", "a triangular system", two(Deltas, kind="system"))
broken("corrected memory", "a system without rates", two(Deltas, kind="system", bad_rated=False), SECOND)
healthy("gates by hand", "both ways", two(Gates, kind="hand"))
broken("gates by hand", "the gate before the product", two(Gates, kind="hand", bad_after=False), SECOND)
broken("gates by hand", "two parts swapped", two(Gates, kind="hand", bad_order=(1, 0, 2)), SECOND)
broken("gates by hand", "the way back not turned round", two(Gates, kind="hand", bad_back=False), SECOND)
healthy("rows and columns", "halves", two(Placed, kind="halves"))
healthy("rows and columns", "small matrices", two(Placed, kind="neighbours"))
broken("rows and columns", "swapped", two(Placed, kind="neighbours", bad_swapped=True), SECOND)
broken("rows and columns", "another base", two(Placed, kind="halves", bad_base=1000.0), SECOND)
