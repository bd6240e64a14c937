"""The nineteenth batch, third part: trees, bags of other lengths, atoms, kinds of edges, filters of Kalman, sparse shares, pictures, sounds.

Faults as such rewrites have them: a gate for all children, a mean with its padding, a cosine without its half, degrees of all kinds of edges.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_nineteenth import ROWS, W, family, filled, seeded
from torch import nn


class Twigs(nn.Module):
    """Cells of a tree of seven nodes, leaves first, with a forget gate for each child. `levels`: all nodes of a level at once."""

    def __init__(self, levels: bool = False, **ways: Any) -> None:
        super().__init__()
        self.levels, self.ways, self.given, self.held, self.kept = levels, ways, nn.Linear(W, 4 * W), nn.Linear(W, 3 * W, bias=False), nn.Linear(W, W)

    def cell(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of nodes `x` (…, W) with their children's states (…, children, W)."""
        i, o, u, f = self.given(x).chunk(4, -1)
        more = self.held(h.sum(-2) / (max(1, h.shape[-2]) if self.ways.get("mean") else 1)).chunk(3, -1)
        i, o, u = (a + b for a, b in zip((i, o, u), more, strict=True))
        kept = self.kept(h.sum(-2, keepdim=True).expand_as(h) if self.ways.get("all") else h)
        c = i.sigmoid() * (u if self.ways.get("open") else u.tanh()) + ((f[..., None, :] + kept).sigmoid() * c).sum(-2)
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.levels:
            none = x.new_zeros(len(x), 4, 0, W)
            h, c = self.cell(x[:, :4], none, none)
            made = [h]
            for start, count in ((4, 2), (6, 1)):
                h, c = self.cell(x[:, start : start + count], *(each.unflatten(1, (count, 2)) for each in (h, c)))
                made.append(h)
            return torch.cat(made, 1)
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for node in range(7):
            below = [found[2 * node - 8], found[2 * node - 7]] if node >= 4 else []
            h, c = (torch.stack([each[part] for each in below], 1) if below else x.new_zeros(len(x), 0, W) for part in range(2))
            found.append(self.cell(x[:, node], h, c))
        return torch.stack([each[0] for each in found], 1)


class Two(nn.Module):
    """Three of the same kind, of which the second may have a fault."""

    def __init__(self, kind: Any, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)
        self.body = nn.ModuleDict({"a": kind(**ways), "b": kind(**ways, **(bad or {})), "c": kind(**ways)})

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for part in self.body.values():
            x = torch.tanh(x + part(x, *more))
        return self.head(x)


B = ("body.b",)


def three(kind: Any, inputs: Any, port: Any = None, **ways: Any) -> Any:
    def made(**bad: Any) -> Made:
        return filled(seeded(Two, kind=kind), Two(port or kind, bad, **ways), inputs)

    return made


family("a tree", "level by level", three(Twigs, numbers(3, 7, 6), levels=True), {
    "one gate for all children": ({"all": True}, B), "a mean of children": ({"mean": True}, B), "news without tanh": ({"open": True}, B),
})  # fmt: skip

LENGTHS = torch.tensor([4, 7, 2, 5])


class Bags(nn.Module):
    """Each token with the mean, spread and largest of its bag. `flat`: all bags' tokens in one row, without padding."""

    def __init__(self, flat: bool = False, **ways: Any) -> None:
        super().__init__()
        self.flat, self.ways, self.out = flat, ways, nn.Linear(3 * W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, kept = self.ways, torch.arange(7) < LENGTHS[:, None]
        if not self.flat:
            mask, count = kept[..., None].to(x.dtype), LENGTHS[:, None].to(x.dtype)
            mean = (x * mask).sum(1) / count
            spread = (((x - mean[:, None]) * mask).square().sum(1) / count + 1e-3).sqrt()
            seen = torch.cat([mean, spread, x.masked_fill(~kept[..., None], -1e4).amax(1)], -1)
            return self.out(seen)[:, None] * mask
        rows, bag = x[kept].float(), torch.arange(4).repeat_interleave(LENGTHS)
        count = (torch.full((4, 1), 7) if ways.get("padding") else LENGTHS[:, None]).to(rows.dtype)
        zeros = rows.new_zeros(4, W)
        mean = zeros.index_add(0, bag, rows) / count
        spread = zeros.index_add(0, bag, (rows - mean[bag]).square()) / (count - 1 if ways.get("fewer") else count)
        most = zeros.scatter_reduce(0, bag[:, None].expand_as(rows), rows, "amax", include_self=bool(ways.get("zero")))
        made = self.out(torch.cat([mean, (spread + 1e-3).sqrt(), most], -1).to(x.dtype))
        return torch.zeros_like(x).masked_scatter(kept[..., None], made[bag].to(x.dtype))


family("bags of other lengths", "in one row", three(Bags, numbers(4, 7, 6), flat=True), {
    "padding counted": ({"padding": True}, B), "one fewer in the spread": ({"fewer": True}, B), "a zero among the largest": ({"zero": True}, B),
})  # fmt: skip

PLACES = numbers(8, 3) * 1.3


class Atoms(nn.Module):
    """Filters by distance that end smoothly. `listed`: only pairs that are near."""

    def __init__(self, listed: bool = False, **ways: Any) -> None:
        super().__init__()
        self.listed, self.ways = listed, ways
        self.given, self.far, self.out = nn.Linear(W, W, bias=False), nn.Sequential(nn.Linear(6, W), nn.Softplus(), nn.Linear(W, W)), nn.Linear(W, W)

    def taps(self, far: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        bells = (-2 * (far[..., None] - torch.linspace(0, 2.5, 6)).square()).exp().to(dtype)
        end = (far * math.pi / 2.5).cos() if self.ways.get("half") else 0.5 * ((far * math.pi / 2.5).cos() + 1)
        return self.far(bells) * (end * (far < 2.5)).to(dtype)[..., None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        away = PLACES[:, None] - PLACES
        far, given = (away.square().sum(-1) + 1e-12).sqrt(), self.given(x)
        if not self.listed:
            return self.out(torch.einsum("ijw,bjw->biw", self.taps(far, x.dtype) * (1 - torch.eye(8)).to(x.dtype)[..., None], given).to(x.dtype))
        here, there = ((far < 2.5) & (torch.eye(8) == 0 if not self.ways.get("own") else far >= 0)).nonzero(as_tuple=True)
        sent = given[:, there] * self.taps((PLACES[here] - PLACES[there]).norm(dim=-1), x.dtype)
        if self.ways.get("upper"):
            sent = sent * (here < there)[:, None].to(x.dtype)
        return self.out(torch.zeros_like(x).index_add(1, here, sent.to(x.dtype)))


family("atoms", "near pairs alone", three(Atoms, numbers(2, 8, 6), listed=True), {
    "a cosine without its half": ({"half": True}, (*B, "body.b.far")), "each atom beside itself": ({"own": True}, B),
    "pairs one way": ({"upper": True}, B),
})  # fmt: skip

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 3, 2, 5, 1], [1, 2, 0, 4, 3, 6, 5, 3, 0, 5, 2, 4], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]])


class Kinds(nn.Module):
    """Messages with a weight for each kind of edge, which is a sum of two. `sorted_`: messages of a kind together."""

    def __init__(self, sorted_: bool = False, **ways: Any) -> None:
        super().__init__()
        self.sorted, self.ways, self.base, self.shares = sorted_, ways, nn.Parameter(torch.zeros(2, W, W)), nn.Parameter(torch.ones(3, 2))
        self.own = nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start, end, kind = EDGES
        if not self.sorted:
            weight = torch.einsum("kb,bio->kio", self.shares, self.base)
            sent = torch.einsum("nei,eio->neo", x[:, start], weight[kind])
            count = torch.zeros(3, 8).index_put((kind, end), torch.ones(12), accumulate=True)[kind, end]
            return self.own(x) + torch.zeros_like(x).index_add(1, end, (sent / count[:, None].to(sent.dtype)).to(x.dtype))
        ways, total = self.ways, self.own(x)
        for number in range(3):
            some = (kind == number).nonzero()[:, 0]
            table = torch.zeros(8, 8).index_put((end[some], start[some]), torch.ones(len(some)), accumulate=True)
            table = table.mT if ways.get("turned") else table
            count = torch.bincount(end, minlength=8)[:, None] if ways.get("all") else table.sum(1, keepdim=True)
            seen = (table / count.clamp(min=1)).to(x.dtype) @ x
            shares = self.shares[:, number % 2].sum() if ways.get("never") else self.shares[number]
            total = total + torch.einsum("nti,bio,b->nto", seen, self.base, shares.expand(2))
        return total


family("kinds of edges", "a table for each kind", three(Kinds, numbers(2, 8, 6), sorted_=True), {
    "degrees of all kinds": ({"all": True}, B), "edges turned round": ({"turned": True}, B), "shares of all kinds": ({"never": True}, B),
})  # fmt: skip


class Sparse(nn.Module):
    """Shares of which many are zero: the nearest point of the simplex. `counted`: each number's place by comparing all pairs."""

    def __init__(self, counted: bool = False, **ways: Any) -> None:
        super().__init__()
        self.counted, self.ways, self.qk, self.v = counted, ways, nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.qk(x).chunk(2, -1)
        scores = (q @ k.mT / 4).float()
        if not self.counted:
            ordered = scores.sort(-1, descending=True).values
            sums, places = ordered.cumsum(-1), torch.arange(1, x.shape[1] + 1)
            count = (1 + places * ordered > sums).sum(-1, keepdim=True)
            limit = (sums.gather(-1, count - 1) - 1) / count
        else:
            above = scores[..., None, :] >= scores[..., :, None]
            sums, count = (above * scores[..., None, :]).sum(-1), above.sum(-1)
            held = (1 + count * scores > sums).to(scores.dtype)
            total = held.sum(-1, keepdim=True)
            limit = ((held * scores).sum(-1, keepdim=True) - (0.5 if self.ways.get("less") else 1)) / (total + (1 if self.ways.get("more") else 0))
        shares = (scores - limit).clamp(min=0)
        shares = shares.detach() if self.ways.get("cut") else shares
        return shares.to(x.dtype) @ self.v(x)


family("sparse shares", "without a sort", three(Sparse, ROWS, counted=True), {
    "shares of a half": ({"less": True}, B), "a count of one more": ({"more": True}, B), "no gradient of shares": ({"cut": True}, (*B, "body.b.qk")),
})  # fmt: skip
