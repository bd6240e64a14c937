"""The nineteenth batch, fifth part: mixers of tokens, experts, and reflections.

Exponential gates with a stabiliser, experts whose tokens are sorted and padded, sequences on two ranks, shares by cosines, products of reflections, a
filter of Kalman, a decoder with two kinds of caches.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_nineteenth import LENGTH, ROWS, W, family
from pair_nineteenth_shapes import B, three
from torch import nn


class Exponential(nn.Module):
    """A matrix for memory with exponential gates, token by token and kept small by a running maximum. `whole`: all pairs of tokens at once."""

    def __init__(self, whole: bool = False, **ways: Any) -> None:
        super().__init__()
        self.whole, self.ways, self.qkv, self.gates = whole, ways, nn.Linear(W, 3 * W), nn.Linear(W, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).float().chunk(3, -1)
        put, keep = self.gates(x).float().unbind(-1)
        keep, k = F.logsigmoid(keep + 1), k / 4
        return torch.tanh((self.at_once if self.whole else self.stepped)(q, k, v, put, keep)).to(x.dtype)

    def stepped(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, put: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        memory, total, most, made = torch.zeros(len(q), W, W).to(q), torch.zeros(len(q), W).to(q), torch.full((len(q),), -1e4).to(q), []
        for place in range(q.shape[1]):
            before, most = most, torch.maximum(keep[:, place] + most, put[:, place])
            old, new = (keep[:, place] + before - most).exp()[:, None], (put[:, place] - most).exp()[:, None]
            total = old * total + new * k[:, place]
            memory = old[..., None] * memory + new[..., None] * k[:, place, :, None] * v[:, place, None]
            below = torch.maximum((q[:, place] * total).sum(-1).abs(), (-most).exp())
            made.append((q[:, place, None] @ memory)[:, 0] / below[:, None])
        return torch.stack(made, 1)

    def at_once(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, put: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        ways, along = self.ways, keep.cumsum(1)
        along = F.pad(along, (1, -1)) if ways.get("early") else along
        far = along[:, :, None] - along[:, None] + put[:, None]
        far = far.masked_fill(torch.ones(far.shape[1:]).triu(1).bool(), -math.inf)
        most = far.amax(-1, keepdim=True)
        shares = q @ k.mT * (far - most).exp()
        least = torch.ones_like(most) if ways.get("one") else (-most).exp()
        below = shares.sum(-1, keepdim=True).abs()
        return shares @ v / (below + least if ways.get("summed") else torch.maximum(below, least))


family("exponential gates", "all at once", three(Exponential, ROWS, whole=True), {
    "one gate late": ({"early": True}, B), "at least one below": ({"one": True}, B), "both added below": ({"summed": True}, B),
})  # fmt: skip


class Choice(nn.Module):
    """The best of four experts for each token, with a loss of its own added to the result. `sorted_`: tokens of an expert in one padded block."""

    def __init__(self, sorted_: bool = False, **ways: Any) -> None:
        super().__init__()
        self.sorted, self.ways, self.router = sorted_, ways, nn.Linear(W, 4)
        self.up, self.over, self.down = nn.Parameter(torch.zeros(4, W, 24)), nn.Parameter(torch.zeros(4, 24)), nn.Parameter(torch.zeros(4, 24, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, ways = x.flatten(0, 1), self.ways
        share, best = self.router(rows).softmax(-1).max(-1)
        if not self.sorted:
            hidden = F.silu(torch.einsum("ti,tih->th", rows, self.up[best]) + self.over[best])
            return (torch.einsum("th,tho->to", hidden, self.down[best]) * share[:, None]).to(x.dtype).view_as(x)
        order = best.argsort(stable=True)
        counts = torch.bincount(best, minlength=4)
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[best[order]]
        room = int(counts.max()) - (1 if ways.get("small") else -1)
        place = place % room
        blocks = rows.new_zeros(4, room, W).index_put((best[order], place), rows[order])
        hidden = F.silu(torch.baddbmm(self.over[:, None].to(blocks.dtype), blocks, self.up.to(blocks.dtype)))
        made = torch.bmm(hidden, self.down.to(hidden.dtype))[best[order], place]
        made = made * (share if ways.get("shares") else share[order])[:, None]
        back = order if ways.get("back") else order.argsort()
        return made[back].to(x.dtype).view_as(x)


family("sorted and padded experts", "blocks of tokens", three(Choice, numbers(2, 9, 6), sorted_=True), {
    "shares not sorted": ({"shares": True}, B), "sorted twice": ({"back": True}, B), "a room that is too small": ({"small": True}, B),
})  # fmt: skip


class Ring(nn.Module):
    """Causal attention. `ranks`: each of two ranks has the first and the last quarter of its own, and the keys of both go round."""

    def __init__(self, ranks: bool = False, **ways: Any) -> None:
        super().__init__()
        self.ranks, self.ways, self.qkv, self.out = ranks, ways, nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if not self.ranks:
            return self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0])
        ways, quarter = self.ways, torch.arange(12).view(4, 3)
        held = [torch.cat([quarter[rank], quarter[3 - rank]]) for rank in range(2)]
        made = []
        for rank in range(2):
            mine, parts = held[rank], []
            for step in range(2):
                theirs = held[(rank + step) % 2]
                scores = (q[:, mine] @ k[:, theirs].mT).float() / 4
                limit = torch.arange(6) if ways.get("local") else theirs
                scores = scores.masked_fill(limit > (torch.arange(6) if ways.get("local") else mine)[:, None], -1e4)
                parts.append((scores.logsumexp(-1, keepdim=True), scores.softmax(-1).to(v.dtype) @ v[:, theirs]))
            sums = torch.stack([each[0] for each in parts])
            shares = torch.full_like(sums, 0.5) if ways.get("mean") else sums.softmax(0)
            made.append((shares.to(v.dtype) * torch.stack([each[1] for each in parts])).sum(0))
        order = torch.cat(held) if ways.get("order") else torch.cat(held).argsort()
        return self.out(torch.cat(made, 1)[:, order])


family("a sequence on two ranks", "a quarter from each end", three(Ring, numbers(2, 12, 6), ranks=True), {
    "places within the rank": ({"local": True}, B), "the mean of ranks": ({"mean": True}, B), "not put back": ({"order": True}, B),
})  # fmt: skip


class Cosines(nn.Module):
    """Shares by cosines, whose warmth is learned and limited, and a bias that a network makes of distances. `table`: of all distances once."""

    def __init__(self, table: bool = False, **ways: Any) -> None:
        super().__init__()
        self.table, self.ways, self.qkv, self.warmth = table, ways, nn.Linear(W, 3 * W), nn.Parameter(torch.ones(2, 1, 1) * 2)
        self.far = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, count = self.ways, x.shape[1]
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        away = torch.arange(count)[:, None] - torch.arange(count)
        warm = self.warmth.clamp(max=math.log(100)).exp()
        if not self.table:
            bias = self.far((away.sign() * (away.abs() + 1).log2())[..., None].to(x.dtype)).permute(2, 0, 1)
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * warm + 4 * bias.sigmoid()
            return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
        all_ = torch.arange(1 - count, count)
        made = self.far((all_.sign() * torch.log2(1 + all_.abs()))[:, None].to(x.dtype))
        made = made.roll(1, 0) if ways.get("late") else made
        bias = made[(away.mT if ways.get("turned") else away) + count - 1].permute(2, 0, 1)
        q = q / q.square().sum(-1, keepdim=True).sqrt()
        k = k / (k.square().sum(-1, keepdim=True).sqrt() if not ways.get("one") else 4)
        scores = (q * warm) @ k.mT.to(q.dtype) + 4 * bias.sigmoid()
        return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


family("shares by cosines", "a table of distances", three(Cosines, ROWS, table=True), {
    "distances one late": ({"late": True}, B), "distances turned round": ({"turned": True}, B), "keys that keep their size": ({"one": True}, B),
})  # fmt: skip


class Reflections(nn.Module):
    """A product of three reflections. `joined`: as one matrix of low rank taken from the identity."""

    def __init__(self, joined: bool = False, **ways: Any) -> None:
        super().__init__()
        self.joined, self.ways, self.v, self.bias = joined, ways, nn.Parameter(torch.zeros(3, W)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v, ways, y = self.v.float(), self.ways, x.float()
        if not self.joined:
            for each in v:
                y = y - 2 * (y @ each)[..., None] * each / each.square().sum()
            return (y + self.bias).to(x.dtype)
        v = v / v.norm(dim=1, keepdim=True)
        near = (v @ v.mT).triu(1) if not ways.get("apart") else torch.zeros(3, 3).to(v)
        inner = torch.linalg.solve_triangular(near + torch.eye(3).to(v) / 2, v, upper=True)
        made = (y @ inner.mT) @ v if ways.get("order") else (y @ v.mT) @ inner
        return (y - (made / 2 if ways.get("half") else made) + self.bias).to(x.dtype)


family("reflections", "one matrix", three(Reflections, ROWS, joined=True), {
    "the other order": ({"order": True}, B), "each by itself": ({"apart": True}, B), "projections": ({"half": True}, B),
})  # fmt: skip


class Kalman(nn.Module):
    """A state of four numbers that is predicted and corrected. `kept`: a covariance that stays symmetric, and a solver for the gain."""

    def __init__(self, kept: bool = False, **ways: Any) -> None:
        super().__init__()
        self.kept, self.ways, self.move, self.see = kept, ways, nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(3, 4))
        self.given, self.out = nn.Linear(W, 3), nn.Linear(4, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, seen = self.ways, self.given(x).float()
        move, see, one, own = self.move.float(), self.see.float(), torch.eye(4).to(seen), torch.eye(3).to(seen)
        state, spread, made = torch.zeros(len(x), 4).to(seen), one.expand(len(x), 4, 4), []
        for given in seen.unbind(1):
            state = state @ move.mT
            spread = move @ spread @ move.mT + (0 if ways.get("still") else 0.3) * one
            inside = see @ spread @ see.mT + own
            if not self.kept:
                gain = spread @ see.mT @ inside.inverse()
                spread = (one - gain @ see) @ spread
            else:
                gain = torch.linalg.solve(inside, see @ spread).mT
                rest = one - gain @ see
                spread = rest @ spread @ rest.mT + (0 if ways.get("bare") else 1) * gain @ gain.mT
            off = given if ways.get("whole") else given - state @ see.mT
            state = state + (gain @ off[..., None])[..., 0]
            made.append(state)
        return self.out(torch.stack(made, 1).to(x.dtype))


family("a filter of Kalman", "a symmetric covariance", three(Kalman, ROWS, kept=True), {
    "no noise of the state": ({"still": True}, B), "no noise of what is seen": ({"bare": True}, B), "not what is new in it": ({"whole": True}, B),
})  # fmt: skip


class Hybrid(nn.Module):
    """A causal filter of four taps and causal attention. `pieces`: a prompt of five tokens and then one at a time, with caches for both."""

    def __init__(self, pieces: bool = False, **ways: Any) -> None:
        super().__init__()
        self.pieces, self.ways, self.taps, self.qkv = pieces, ways, nn.Conv1d(W, W, 4, groups=W), nn.Linear(W, 3 * W)

    def turned(self, x: torch.Tensor, start: int) -> torch.Tensor:
        angles = (start + torch.arange(x.shape[1]))[:, None] * 20.0 ** -(torch.arange(8) / 8)
        sine, cosine, (a, b) = angles.sin().to(x.dtype), angles.cos().to(x.dtype), x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, pieces = self.ways, [x[:, :5], *x[:, 5:].split(1, 1)] if self.pieces else [x]
        before, keys, values, made, start = x.new_zeros(len(x), 3, W), [], [], [], 0
        for piece in pieces:
            wide = torch.cat([before, piece], 1)
            before = piece[:, -3:] if ways.get("piece") and piece.shape[1] > 2 else wide[:, -4:-1] if ways.get("stale") else wide[:, -3:]
            q, k, v = self.qkv(F.silu(self.taps(wide.mT).mT)).chunk(3, -1)
            at = start if not ways.get("places") else start % 5
            keys.append(self.turned(k, at))
            values.append(v)
            k, v = torch.cat(keys, 1), torch.cat(values, 1)
            seen = torch.arange(k.shape[1]) <= start + torch.arange(piece.shape[1])[:, None] - (1 if ways.get("past") and start else 0)
            scores = (self.turned(q, at) @ k.mT / 4).masked_fill(~seen, -1e4)
            made.append(scores.softmax(-1).to(v.dtype) @ v)
            start += piece.shape[1]
        return torch.cat(made, 1)


family("a prompt and single tokens", "two kinds of caches", three(Hybrid, numbers(2, LENGTH, 6), pieces=True), {
    "a cache one token late": ({"stale": True}, (*B, "body.b.taps")), "places that begin anew": ({"places": True}, B),
    "a token that does not see itself": ({"past": True}, B),
})  # fmt: skip
