"""The nineteenth batch, second part: how numbers flow. Two streams, skips, halves that are run backward, an equation in steps, weights that a network
makes, trees, bags of other lengths, atoms, kinds of edges, filters of Kalman.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_nineteenth import LENGTH, ROWS, W, family, filled, seeded
from torch import nn


class Towards(nn.Module):
    """Each of two streams reads the other, and both are summed up to one number for each row."""

    def __init__(self, fused: bool = False, **ways: Any) -> None:
        super().__init__()
        self.fused, self.ways = fused, ways
        self.q, self.k, self.v, self.back = (nn.Linear(W, W) for _ in range(4))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.fused:
            return a + self.read(a, b, self.v), b + self.read(b, a, self.back)
        scores = self.q(a) @ self.k(b).mT / 4
        other = scores.mT if self.ways.get("same") else self.q(b) @ self.k(a).mT / 4
        first = scores.softmax(1 if self.ways.get("axis") else -1).to(a.dtype) @ self.v(b)
        second = other.softmax(-1).to(a.dtype) @ (self.v(a) if self.ways.get("v") else self.back(a))
        return (a + first, b + second)

    def read(self, x: torch.Tensor, y: torch.Tensor, v: nn.Linear) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.q(x)[:, None], self.k(y)[:, None], v(y)[:, None])[:, 0]


class Streams(nn.Module):
    def __init__(self, fused: bool = False, swapped: bool = False, **bad: Any) -> None:
        super().__init__()
        self.left, self.right, self.swapped = nn.Linear(6, W), nn.Linear(6, W), swapped
        self.one, self.two, self.three = Towards(fused), Towards(fused, **bad), Towards(fused)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = self.one(self.left(x).tanh(), self.right(y).tanh())
        a, b = self.two(*((b, a) if self.swapped else (a, b)))
        a, b = self.three(a, b)
        return torch.cat([a.mean(1), b.mean(1)], -1)


def streams(**bad: Any) -> Made:
    return filled(seeded(Streams), Streams(True, **bad), (ROWS, numbers(3, LENGTH, 6).flip(1) * 0.7))


family("two streams", "scores written out", streams, {
    "one matrix for both ways": ({"same": True}, ("two",)), "a softmax over queries": ({"axis": True}, ("two",)),
    "values of the other way": ({"v": True}, ("two",)), "streams exchanged between layers": ({"swapped": True}, ("",)),
})  # fmt: skip


class Level(nn.Module):
    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.filter, self.norm = nn.Conv1d(wide, out, 3, padding=1), nn.GroupNorm(2, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.filter(x)))


class Hourglass(nn.Module):
    """Two levels down and two up, with skips. `port`: strided picks for pools, and repeats for upsampling."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways = port, ways
        self.down, self.up = nn.ModuleList([Level(6, 8), Level(8, 12)]), nn.ModuleList([Level(24, 8), Level(16, 8)])
        self.middle, self.head = Level(12, 12), nn.Conv1d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept, ways = x.mT, [], self.ways
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = (x[..., ::2] + x[..., 1::2]) / 2 if self.port else F.avg_pool1d(x, 2)
        x = self.middle(x)
        for number, level in enumerate(self.up):
            skip, last = kept.pop(), number == 1
            if ways.get("linear") and last:
                x = F.interpolate(x, scale_factor=2, mode="linear")
            else:
                x = x.repeat_interleave(2, -1) if self.port else F.interpolate(x, scale_factor=2)
            skip = skip.flip(-1) if ways.get("turned") and last else skip
            x = level(torch.cat([skip, x] if ways.get("order") and last else [x, skip], 1))
        return self.head(x)


def hourglass(**bad: Any) -> Made:
    return filled(seeded(Hourglass), Hourglass(True, **bad), numbers(2, 16, 6))


family("skips over levels", "picks and repeats", hourglass, {
    "the last skip first": ({"order": True}, ("",)), "the last skip turned": ({"turned": True}, ("",)), "lines between": ({"linear": True}, ("",)),
})  # fmt: skip


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, W), nn.Linear(W, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


class Coupled(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.f, self.g = ways, Half(), Half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], -1)


class Backwards(torch.autograd.Function):
    """Makes the inputs again from the results, and runs both parts once more."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: torch.Tensor, part: Any, *held: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a, b = x.chunk(2, -1)
            a = a + part.f(b)
            made = torch.cat([a, b + part.g(a)], -1)
        ctx.part, ctx.held = part, held
        ctx.save_for_backward(made)
        return made

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (made,), part, ways = ctx.saved_tensors, ctx.part, ctx.part.ways
        with torch.enable_grad():
            a = made.chunk(2, -1)[0].detach().requires_grad_()
            second = part.g(a)
        b = (made.chunk(2, -1)[1] - second).detach().requires_grad_()
        da, db = gradient.chunk(2, -1)
        more = torch.autograd.grad(second, [a, *part.g.parameters()], db)
        da = da if ways.get("cut") else da + more[0]
        with torch.enable_grad():
            first = part.f(b)
        rest = torch.autograd.grad(first, [b, *part.f.parameters()], gradient.chunk(2, -1)[0] if ways.get("own") else da)
        db = db if ways.get("through") else db + rest[0]
        return (torch.cat([da, db], -1), None, *rest[1:], *more[1:])


class CoupledPort(Coupled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Backwards.apply(x, self, *self.f.parameters(), *self.g.parameters())  # type: ignore[no-any-return, no-untyped-call]


class Halves(nn.Module):
    def __init__(self, kind: type[Coupled], **bad: Any) -> None:
        super().__init__()
        self.inside, self.parts, self.head = nn.Linear(6, W), nn.ModuleList([kind(), kind(**bad), kind()]), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for part in self.parts:
            x = part(x)
        return self.head(x)


def halves(**bad: Any) -> Made:
    return filled(seeded(Halves, kind=Coupled), Halves(CoupledPort, **bad), ROWS)


MIDDLE = ("parts.1",)
family("pairs of halves", "inputs made again", halves, {
    "no gradient through the second": ({"cut": True}, MIDDLE), "no gradient through the first": ({"through": True}, MIDDLE),
    "the first's gradient of the result": ({"own": True}, MIDDLE),
})  # fmt: skip


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(W + 1, 24), nn.Linear(24, W)

    def forward(self, time: float, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(F.pad(x, (0, 1), value=time))))


class Solver(nn.Module):
    """Three steps of the classical method of fourth order, each by formulas or by its table."""

    def __init__(self, table: bool = False, **ways: Any) -> None:
        super().__init__()
        self.table, self.ways, self.slope = table, ways, Slope()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = 0.3
        for step in range(3):
            time = step * size
            if not self.table:
                one = self.slope(time, x)
                two = self.slope(time + size / 2, x + size / 2 * one)
                three = self.slope(time + size / 2, x + size / 2 * two)
                four = self.slope(time + size, x + size * three)
                x = x + size / 6 * (one + 2 * two + 2 * three + four)
                continue
            shares = (1, 2, 1, 2) if self.ways.get("shares") else (1, 2, 2, 1)
            made: list[torch.Tensor] = []
            for at in (0.0, 0.5, 0.5, 1.0):
                when = 0.0 if self.ways.get("still") else time + at * size
                seen = made[0] if self.ways.get("first") and len(made) == 2 else made[-1] if made else x
                made.append(self.slope(when, x + at * size * seen))
            x = x + size * torch.stack([share / 6 * each for share, each in zip(shares, made, strict=True)]).sum(0)
        return x


class Solved(nn.Module):
    def __init__(self, table: bool = False, **bad: Any) -> None:
        super().__init__()
        self.inside, self.first, self.solver, self.head = nn.Linear(6, W), Solver(table), Solver(table, **bad), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.solver(torch.tanh(self.first(self.inside(x)))))


def solved(**bad: Any) -> Made:
    return filled(seeded(Solved), Solved(True, **bad), ROWS)


family("an equation in steps", "by its table", solved, {
    "shares exchanged": ({"shares": True}, ("solver",)), "time that stands still": ({"still": True}, ("solver",)),
    "the third slope from the first": ({"first": True}, ("solver",)),
})  # fmt: skip


class Maker(nn.Module):
    """A filter over time whose taps a network makes of the row's mean. `joined`: all rows in one grouped filter."""

    def __init__(self, joined: bool = False, **ways: Any) -> None:
        super().__init__()
        self.joined, self.ways, self.make = joined, ways, nn.Linear(W, 3 * W + W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps, bias = self.make(x.mean(1)).split([3 * W, W], -1)
        taps = taps.unflatten(-1, (3, W)).mT if not self.ways.get("order") else taps.unflatten(-1, (W, 3))
        if not self.joined:
            made = torch.stack([F.conv1d(row.mT, tap[:, None], each, padding=1, groups=W).mT for row, tap, each in zip(x, taps, bias, strict=True)])
        else:
            taps, bias = (each.roll(1, 0) if self.ways.get("rows") else each for each in (taps, bias))
            whole = F.conv1d(x.mT.flatten(0, 1)[None], taps.flatten(0, 1)[:, None], bias.flatten(), padding=1, groups=W * len(x))
            made = whole.view(len(x), W, -1).mT
        made = made / math.sqrt(W) if self.ways.get("scaled") else made
        return x + F.silu(made)


class Makers(nn.Module):
    def __init__(self, joined: bool = False, **bad: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, W), Maker(joined), Maker(joined, **bad), nn.LayerNorm(W), nn.Linear(W, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def makers(**bad: Any) -> Made:
    return filled(seeded(Makers), Makers(True, **bad), ROWS)


family("taps that a network makes", "all rows in one filter", makers, {
    "taps in another order": ({"order": True}, ("net.2",)), "taps of the row before": ({"rows": True}, ("net.2",)),
    "scaled once more": ({"scaled": True}, ("net.2",)),
})  # fmt: skip
