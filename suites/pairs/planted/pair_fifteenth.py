"""A fifteenth batch, committed before the judge has seen any of it: pictures, filters, statistics, gates, graphs, splines and capsules.

Each network has two layers of one kind in a residual stream, and a fault is in the second layer alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import Stream, numbers
from torch import nn

W, ROWS, LENGTH = 16, 3, 12
LAST = "layers.1"


def pair(part: Callable[..., nn.Module], bad: dict[str, Any] | None = None, **ways: Any) -> Made:
    """`ways`: of all layers of `other`. `bad`: of its second layer."""
    torch.manual_seed(0)
    model, other = spread(Stream(part(), part())), Stream(part(**ways), part(**{**ways, **(bad or {})}))
    other.load_state_dict(model.state_dict())
    return model, other, numbers(ROWS, LENGTH, W), dict(MEAN)


def entered(family: str, part: Callable[..., nn.Module], ways: dict[str, dict[str, Any]], faults: dict[str, dict[str, Any]], *modules: str) -> None:
    """Healthy pairs by `ways`, and broken ones, which are written in the first of the ways and have a fault."""
    first = next(iter(ways.values()))
    for name, given in ways.items():
        healthy(family, name, lambda given=given: pair(part, **given))  # type: ignore[misc]
    for name, bad in faults.items():
        broken(family, name, lambda bad=bad: pair(part, bad, **first), *(modules or (LAST,)))  # type: ignore[misc]


class Places(nn.Module):
    """Each token reads a picture of three by four at a place of its own, in straight lines between the four pixels around it."""

    def __init__(self, kind: str = "torch", corners: bool = False, turned: bool = False, border: bool = False, late: float = 0.0) -> None:
        super().__init__()
        self.kind, self.corners, self.turned, self.border, self.late = kind, corners, turned, border, late
        self.where, self.value, self.out = nn.Linear(W, 2), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = 1.4 * torch.tanh(self.where(x).float())
        picture = self.value(x).float().mT.unflatten(-1, (3, 4))
        if self.kind == "torch":
            made = F.grid_sample(picture, places[:, None], align_corners=False)[:, :, 0].mT
            return self.out(made.to(x.dtype))
        column, line = places.flip(-1).unbind(-1) if self.turned else places.unbind(-1)
        if self.corners:
            column, line = (column + 1) / 2 * 3, (line + 1) / 2 * 2
        else:
            column, line = ((column + 1) * 4 - 1) / 2 + self.late, ((line + 1) * 3 - 1) / 2
        left, top = column.floor(), line.floor()
        made = torch.zeros_like(picture.flatten(2).mT)
        for across in (0, 1):
            for down in (0, 1):
                share = (column - left if across else left + 1 - column) * (line - top if down else top + 1 - line)
                at, of = (left + across).long(), (top + down).long()
                seen = ((at >= 0) & (at < 4) & (of >= 0) & (of < 3)) | self.border
                index = (of.clamp(0, 2) * 4 + at.clamp(0, 3))[..., None].expand(-1, -1, W)
                made = made + picture.flatten(2).mT.gather(1, index) * (share * seen)[..., None]
        return self.out(made.to(x.dtype))


entered("places in a picture", Places, {"by hand": {"kind": "hand"}}, {
    "corners on corners": {"corners": True}, "columns for lines": {"turned": True}, "the border goes on": {"border": True},
    "half a pixel to the right": {"late": 0.5}})  # fmt: skip


class Turned(nn.Module):
    """A filter that halves the length, and one that doubles it again. `kind`: torch's, or zeros put between and a filter turned round."""

    def __init__(self, kind: str = "torch", flipped: bool = True, late: int = 0, apart: bool = True, between: int = 0) -> None:
        super().__init__()
        self.kind, self.flipped, self.late, self.apart, self.between = kind, flipped, late, apart, between
        self.down, self.up = nn.Conv1d(W, W, 2, 2), nn.ConvTranspose1d(W, W, 4, 2, 1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = F.silu(self.down(x.mT))
        if self.kind == "torch":
            return self.up(made).mT
        weight = self.up.weight.unflatten(0, (2, -1)).transpose(1, 2)
        weight = (weight if self.apart else weight.flip(0)).flatten(0, 1)
        weight = weight.flip(-1) if self.flipped else weight
        if self.kind == "phases":  # even and odd places apart
            even = F.conv1d(F.pad(made, (1, 0)), weight[..., 0::2], groups=2)
            odd = F.conv1d(F.pad(made, (0, 1)), weight[..., 1::2], groups=2)
            return (torch.stack([even, odd], -1).flatten(-2) + self.up.bias[:, None].to(made.dtype)).mT
        places = (made, torch.zeros_like(made)) if not self.between else (torch.zeros_like(made), made)
        filled = F.pad(torch.stack(places, -1).flatten(-2), (2 + self.late, 1 - self.late))
        return F.conv1d(filled, weight, self.up.bias, groups=2).mT


entered("filters turned round", Turned, {"zeros between": {"kind": "zeros"}, "even and odd places": {"kind": "phases"}}, {
    "not turned": {"flipped": False}, "one place late": {"late": 1}, "groups swapped": {"apart": False}})  # fmt: skip


class Boxes(nn.Module):
    """Each token moves and sizes a box at its own place, whose four sides are read on. `kind`: all at once, or side by side."""

    def __init__(self, kind: str = "at once", middle: float = 0.5, limit: float = 0.5, turned: bool = False, halves: float = 2.0) -> None:
        super().__init__()
        self.kind, self.middle, self.limit, self.turned, self.halves = kind, middle, limit, turned, halves
        self.change, self.out = nn.Linear(W, 4), nn.Linear(4, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change = self.change(x).float()
        lines, columns = (torch.arange(LENGTH) // 4 + self.middle) * 0.25, (torch.arange(LENGTH) % 4 + self.middle) * 0.25
        if self.kind == "at once":
            middles = torch.stack([columns, lines], -1) + change[..., :2] * 0.3
            sizes = 0.3 * change[..., 2:].clamp(max=self.limit).exp()
            return self.out(torch.cat([middles - sizes / 2, middles + sizes / 2], -1).to(x.dtype))
        across, down, wide, high = change.unbind(-1)
        wide, high = (high, wide) if self.turned else (wide, high)
        across, down = columns + 0.3 * across, lines + 0.3 * down
        wide, high = (0.3 * torch.exp(torch.minimum(each, torch.tensor(self.limit, dtype=each.dtype))) / self.halves for each in (wide, high))
        return self.out(torch.stack([across - wide, down - high, across + wide, down + high], -1).to(x.dtype))


entered("boxes", Boxes, {"side by side": {"kind": "sides"}}, {
    "corners for middles": {"middle": 0.0}, "no limit of sizes": {"limit": 9.0}, "widths for heights": {"turned": True},
    "whole sizes from the middle": {"halves": 1.0}})  # fmt: skip


class Means(nn.BatchNorm1d):
    """A norm of a batch. `kind`: torch's, or by formulas."""

    def __init__(self, kind: str = "torch", rate: float = 0.1, counted: bool = True, eps: float = 1e-5, alone: bool = False) -> None:
        super().__init__(W, eps)
        self.kind, self.rate, self.counted, self.alone = kind, rate, counted, alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "torch":
            return super().forward(x)
        wide = x.float()
        axes = (0,) if self.alone else (0, 2)
        mean, spread_ = wide.mean(axes, keepdim=True), wide.var(axes, correction=0, keepdim=True)
        if not self.alone:
            many = x.numel() // W
            with torch.no_grad():
                self.running_mean.lerp_(mean.flatten().to(self.running_mean.dtype), self.rate)
                of = spread_.flatten() * (many / (many - 1) if self.counted else 1.0)
                self.running_var.lerp_(of.to(self.running_var.dtype), self.rate)
                self.num_batches_tracked.add_(1)
        made = (wide - mean) * (spread_ + self.eps).rsqrt() * self.weight[:, None].float() + self.bias[:, None].float()
        return made.to(x.dtype)


class Batch(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.inside, self.norm, self.out = nn.Linear(W, W), Means(**ways), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.gelu(self.norm(self.inside(x).mT).mT))


entered("statistics of a batch", Batch, {"by formulas": {"kind": "formulas"}}, {
    "another rate": {"rate": 0.9}, "spreads of the batch kept": {"counted": False}, "an eps of 1e-2": {"eps": 1e-2},
    "each place by itself": {"alone": True}}, "layers.1.norm")  # fmt: skip


class Reset(nn.GRU):
    """A recurrent layer with a reset gate. `kind`: torch's, or step by step from weights in another order of gates."""

    def __init__(self, kind: str = "torch", before: bool = False, swapped: bool = False, turned: bool = False, outside: bool = False) -> None:
        super().__init__(W, W, batch_first=True)
        self.kind, self.before, self.swapped, self.turned, self.outside = kind, before, swapped, turned, outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.kind == "torch":
            return super().forward(x)[0]
        gates = F.linear(x, self.weight_ih_l0, self.bias_ih_l0).chunk(3, -1)
        state, made = torch.zeros_like(x[:, 0]), []
        for place in range(x.shape[1]):
            reset, keep, new = (each[:, place] for each in gates)
            weights, biases = self.weight_hh_l0.chunk(3), self.bias_hh_l0.chunk(3)
            reset = torch.sigmoid(reset + F.linear(state, weights[0], biases[0]))
            keep = torch.sigmoid(keep + F.linear(state, weights[1], biases[1]))
            reset, keep = (keep, reset) if self.swapped else (reset, keep)
            if self.before:
                new = torch.tanh(new + F.linear(reset * state, weights[2], biases[2]))
            elif self.outside:
                new = torch.tanh(new + reset * F.linear(state, weights[2]) + biases[2].to(new.dtype))
            else:
                new = torch.tanh(new + reset * F.linear(state, weights[2], biases[2]))
            state = (1 - keep) * state + keep * new if self.turned else (1 - keep) * new + keep * state
            made.append(state)
        return torch.stack(made, 1)


entered("a reset gate", Reset, {"step by step": {"kind": "steps"}}, {
    "reset before the product": {"before": True}, "two gates swapped": {"swapped": True}, "kept and new swapped": {"turned": True},
    "a bias that is not reset": {"outside": True}})  # fmt: skip


class Edges(nn.Module):
    """Attention along the edges of a graph. `kind`: with a mask, or edge by edge."""

    def __init__(self, kind: str = "mask", slope: float = 0.2, sources: bool = False, itself: bool = True, largest: bool = True) -> None:
        super().__init__()
        self.kind, self.slope, self.sources, self.itself, self.largest = kind, slope, sources, itself, largest
        self.value, self.into, self.of = nn.Linear(W, W), nn.Linear(W, 1), nn.Linear(W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.value(x)
        to, of = self.into(value).float(), self.of(value).float()
        near = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)) % LENGTH
        joined = (near == 1) | (near == 4) | ((near == 0) & self.itself)
        if self.kind == "mask":
            scores = F.leaky_relu(to + of.mT, self.slope).masked_fill(~joined, -torch.inf)
            return scores.softmax(-1).to(value.dtype) @ value
        target, source = joined.nonzero().unbind(1)
        scores = F.leaky_relu(to[:, target, 0] + of[:, source, 0], self.slope)
        by = source if self.sources else target
        most = torch.full_like(to[..., 0], -torch.inf).index_reduce(1, by, scores.detach(), "amax")[:, by]
        shares = (scores - most).exp()
        sums = torch.zeros_like(to[..., 0]).index_add(1, by, shares)
        weighed = (shares / sums[:, by])[..., None].to(value.dtype) * value[:, source]
        return torch.zeros_like(value).index_add(1, target, weighed)


entered("attention on edges", Edges, {"edge by edge": {"kind": "edges"}}, {
    "another slope": {"slope": 0.01}, "shares of sources": {"sources": True}, "no edge to itself": {"itself": False}})  # fmt: skip


class Splines(nn.Module):
    """Sums of cubic curves of each number. `kind`: by recursion over degrees, or by the four pieces of a curve."""

    def __init__(self, kind: str = "recursion", base: bool = True, late: int = 0, degree: int = 3, middle: bool = True) -> None:
        super().__init__()
        self.kind, self.base, self.late, self.degree, self.middle = kind, base, late, degree, middle
        self.heights, self.plain, self.squash = nn.Linear(W * 7, W, bias=False), nn.Linear(W, W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = 2 * torch.tanh(self.squash(x).float() * 0.5) + 2  # from 0 to 4
        knots = torch.arange(-3, 8)
        if self.kind == "recursion":
            parts = ((wide[..., None] >= knots[:-1]) & (wide[..., None] < knots[1:])).to(wide.dtype)
            for degree in range(1, self.degree + 1):
                rising = (wide[..., None] - knots[: -degree - 1]) / degree
                falling = (knots[degree + 1 :] - wide[..., None]) / degree
                parts = rising * parts[..., :-1] + falling * parts[..., 1:]
            parts = parts[..., :7]
        else:
            first = wide.detach().floor().clamp(0, 3)
            t = wide - first
            pieces = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
            if not self.middle:
                pieces = (pieces[0], pieces[2], pieces[1], pieces[3])
            parts = torch.zeros(*wide.shape, 7 + 1, dtype=wide.dtype)
            index = first.long()[..., None] + torch.arange(4) + self.late
            parts = parts.scatter(-1, index, torch.stack(pieces, -1) / 6)[..., :7]
        made = self.heights(parts.flatten(-2).to(x.dtype))
        return made + self.plain(F.silu(x)) if self.base else made


entered("splines", Splines, {"by pieces": {"kind": "pieces"}}, {
    "no plain branch": {"base": False}, "one knot late": {"late": 1}, "inner pieces swapped": {"middle": False}})  # fmt: skip


class Capsules(nn.Module):
    """Four groups vote for four, and votes that agree count more. `kind`: at once, or vote by vote."""

    def __init__(self, kind: str = "at once", times: int = 3, axis: int = -1, squared: bool = True, pooled: bool = False) -> None:
        super().__init__()
        self.kind, self.times, self.axis, self.squared, self.pooled = kind, times, axis, squared, pooled
        self.votes, self.out = nn.Parameter(torch.zeros(4, 4, 4, 4)), nn.Linear(W, W)

    def squashed(self, made: torch.Tensor) -> torch.Tensor:
        lengths = made.square().sum(-1, keepdim=True)
        return made * (lengths if self.squared else (lengths + 1e-3).sqrt()) / (1 + lengths) / (lengths + 1e-3).sqrt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given, votes = x.float().unflatten(-1, (4, 4)), self.votes.float()
        if self.kind == "at once":
            cast = torch.einsum("btid,ijde->btije", given, votes)
        else:
            cast = torch.stack([torch.stack([given[:, :, i] @ votes[i, j] for j in range(4)], 2) for i in range(4)], 2)
        logits = torch.zeros(*cast.shape[:-1], dtype=cast.dtype)
        made = torch.zeros_like(cast[:, :, 0])
        for _ in range(self.times):
            shares = logits.softmax(self.axis)
            if self.kind == "at once":
                made = self.squashed(torch.einsum("btij,btije->btje", shares, cast))
                logits = logits + torch.einsum("btje,btije->btij", made, cast)
            else:
                made = self.squashed(sum(shares[:, :, i, :, None] * cast[:, :, i] for i in range(4)))  # type: ignore[arg-type]
                agreed = torch.stack([(made * cast[:, :, i]).sum(-1) for i in range(4)], 2)
                logits = logits + (agreed.mean(1, keepdim=True) if self.pooled else agreed)
        return self.out(made.flatten(-2).to(x.dtype))


entered("capsules", Capsules, {"vote by vote": {"kind": "votes"}}, {
    "two rounds for three": {"times": 2}, "shares of givers": {"axis": -2}, "lengths not squared": {"squared": False},
    "agreement of all places": {"pooled": True}})  # fmt: skip
