"""The twenty-ninth batch, fifth part: a flow by correlations, splats, levels that are weighed.

The issues: rows and columns of a window (RAFT 192), both maps pooled (RAFT 42), a flow that is not multiplied (RAFT 119), another order of turns
(UnityGaussianSplatting 163), lengths that are not one (gaussian-splatting 651), a length that does not teach (gsplat 153), the wrong factor of a
spread (vbgs 9), weights that are normed twice (EfficientDet.Pytorch 102).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, ported
from pair_twentyninth import family
from torch import nn


class Correlated(nn.Module):
    """Products of each cell with a window around where it went, in two levels."""

    def __init__(self, wrong: str = "", picked: bool = False) -> None:
        super().__init__()
        self.wrong, self.picked = wrong, picked

    def window(self) -> torch.Tensor:
        steps = torch.arange(-1, 2)
        rows, columns = torch.meshgrid(steps, steps, indexing="ij")
        return torch.stack([rows, columns] if self.wrong == "turned" else [columns, rows], -1).reshape(9, 2)

    def forward(self, one: torch.Tensor, two: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        found, (batch, width, h, w) = [], one.shape
        for level in (0, 1):
            map_two = F.avg_pool2d(two, 2) if level else two
            size = torch.tensor([map_two.shape[3], map_two.shape[2]])
            here = at if self.wrong == "level" else at / 2**level
            places = here.permute(0, 2, 3, 1).flatten(1, 2)[:, :, None] + self.window()
            grid = 2 * places / (size if self.wrong == "edges" else size - 1) - 1
            scale = 1 if self.wrong == "scale" else width**-0.5
            if self.picked:
                rows = F.grid_sample(map_two, grid.to(map_two.dtype), align_corners=True)  # batch, width, cells, 9
                source = F.interpolate(F.avg_pool2d(one, 2), scale_factor=2) if self.wrong == "both" and level else one
                made = torch.einsum("bwc,bwcn->bnc", source.flatten(2), rows) * scale
                found.append(made.unflatten(2, (h, w)))
            else:
                volume = (one.flatten(2).mT @ map_two.flatten(2)) * scale
                volume = volume.reshape(batch * h * w, 1, *map_two.shape[2:])
                made = F.grid_sample(volume, grid.reshape(batch * h * w, 3, 3, 2).to(volume.dtype), align_corners=True)
                found.append(made.reshape(batch, h * w, 9).mT.unflatten(2, (h, w)))
        return torch.cat(found, 1)


class Updates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.flow = nn.Conv2d(8 + 18 + 2, 16, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
        self.fresh = nn.Conv2d(8 + 18 + 2, 8, 3, padding=1)

    def forward(self, state: torch.Tensor, seen: torch.Tensor, flow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z, r = self.cell(torch.cat([state, seen, flow], 1)).sigmoid().chunk(2, 1)
        fresh = self.fresh(torch.cat([r * state, seen, flow], 1)).tanh()
        state = (1 - z) * state + z * fresh
        return state, self.flow(state)


class Flows(nn.Module):
    """Two pictures, two steps, and shares of nine neighbours for each of four new cells."""

    def __init__(self, top: str = "", wrong: str = "", picked: bool = False) -> None:
        super().__init__()
        self.top, self.picked, self.first, self.state = top, picked, nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(3, 8, 3, 2, 1)
        self.seen, self.update, self.shares = Correlated(wrong, picked), Updates(), nn.Conv2d(8, 36, 1)

    def widened(self, flow: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        batch, _, h, w = flow.shape
        shares = self.shares(state).unflatten(1, (4, 9) if self.top == "order" else (9, 4))
        shares = shares.transpose(1, 2) if self.top == "order" else shares
        shares = shares.softmax(2 if self.top == "shares" else 1).unflatten(2, (2, 2))
        scaled = flow if self.top == "scale" else 2 * flow
        if self.picked:
            padded = F.pad(scaled, (1, 1, 1, 1))
            near = torch.stack([padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)], 2)
        else:
            near = F.unfold(scaled, 3, padding=1).reshape(batch, 2, 9, h, w)
        made = torch.einsum("bnijhw,bcnhw->bchiwj", shares.to(near.dtype), near)
        return made.reshape(batch, 2, 2 * h, 2 * w)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        a, b, state, top = self.first(one), self.first(two), self.state(one).tanh(), self.top
        rows, columns = torch.meshgrid(torch.arange(a.shape[2]), torch.arange(a.shape[3]), indexing="ij")
        cells = torch.stack([columns, rows]).to(a.dtype)
        flow, made = torch.zeros_like(a[:, :2]), []
        for _ in range(2):
            flow = flow if top == "taught" else flow.detach()
            state, move = self.update(state, self.seen(b if top == "self" else a, b, cells + flow), flow)
            flow = flow + move
            made.append(self.widened(flow, state))
        return torch.stack(made)


SEEN, STILL = ("seen",), (numbers(2, 3, 8, 12), numbers(2, 3, 8, 12).flip(-1))
family("a flow by correlations", "cells that are picked", lambda **bad: ported(Flows(), Flows(picked=True, **bad), STILL), {
    "a window on its side": ({"wrong": "turned"}, SEEN, ""), "both maps pooled": ({"wrong": "both"}, SEEN, ""),
    "places of the first level": ({"wrong": "level"}, SEEN, ""), "cells for corners": ({"wrong": "edges"}, SEEN, ""),
    "a flow not multiplied": ({"top": "scale"}, TOP, ""), "shares of the new cells": ({"top": "shares"}, TOP, ""),
    "steps that teach each other": ({"top": "taught"}, TOP, ""),
})  # fmt: skip


class Splat(nn.Module):
    """The spread of each splat, of its sizes and its turn, as a picture sees it."""

    def __init__(self, wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.wrong, self.written = wrong, written

    def forward(self, sizes: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        wrong, length = self.wrong, turn.norm(dim=-1, keepdim=True)
        turn = turn if wrong == "length" else turn / (length.detach() if wrong == "cut" else length)
        w, x, y, z = turn.roll(-1, -1).unbind(-1) if wrong == "order" else turn.unbind(-1)
        scale = sizes if wrong == "log" else sizes.exp()
        if self.written:
            vector = torch.stack([x, y, z], -1)
            zero = torch.zeros_like(x)
            cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
            eye = torch.eye(3, dtype=turn.dtype)
            matrix = (w**2 - vector.square().sum(-1))[..., None, None] * eye
            matrix = matrix + 2 * vector[..., None] * vector[..., None, :] + 2 * w[..., None, None] * cross
            matrix = matrix.mT if wrong == "turned" else matrix
            return torch.einsum("nij,nj,nkj->nik", matrix, scale if wrong == "square" else scale**2, matrix)
        rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
        rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
        half = torch.stack(rows, -1).unflatten(-1, (3, 3)) * scale[:, None]
        return half @ half.mT


class Scenery(nn.Module):
    """Twelve splats in the order of their depth, whose shares let the later ones shine through."""

    def __init__(self, top: str = "", wrong: str = "", written: bool = False, root: bool = False) -> None:
        super().__init__()
        self.root, self.top, self.written, self.spread = root, top, written, Splat(wrong, written)
        self.at, self.sizes, self.turn = nn.Parameter(torch.zeros(12, 3)), nn.Parameter(torch.zeros(12, 3)), nn.Parameter(torch.zeros(12, 4))
        self.light, self.cover = nn.Parameter(torch.zeros(12, 3)), nn.Parameter(torch.zeros(12))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        kind = torch.promote_types(places.dtype, torch.float32)
        top, spread = self.top, self.spread(self.sizes, self.turn)[:, :2, :2].to(kind)
        spread = spread + (0 if top == "blur" else 0.3) * torch.eye(2)
        gap = (places[:, None] - self.at[:, :2]).to(kind)
        if self.root:
            far = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), gap[..., None], upper=False).squeeze(-1).square().sum(-1)
        elif self.written:
            a, b, c = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
            x, y = gap.unbind(-1)
            far = (c * x * x - 2 * b * x * y + a * y * y) / (a * c - b * b)
        else:
            far = (gap * torch.linalg.solve(spread, gap[..., None]).squeeze(-1)).sum(-1)
        share = (self.cover if top == "cover" else self.cover.sigmoid()) * (-far / (1 if top == "half" else 2)).exp()
        order = self.at[:, 2].argsort(descending=top == "back")
        share, light = share[:, order], self.light[order].sigmoid()
        left = (1 - share).cumprod(-1)
        left = left if top == "own" else torch.cat([torch.ones_like(left[:, :1]), left[:, :-1]], -1)
        return (left * share).to(light.dtype) @ light


SPREAD = ("spread",)
family("splats", "turns by products", lambda **bad: ported(Scenery(), Scenery(written=True, **bad), numbers(15, 2)), {
    "another order of a turn": ({"wrong": "order"}, SPREAD, ""), "turns of other lengths": ({"wrong": "length"}, SPREAD, ""),
    "a length that does not teach": ({"wrong": "cut"}, SPREAD, ""), "turned back": ({"wrong": "turned"}, SPREAD, ""),
    "sizes not squared": ({"wrong": "square"}, SPREAD, ""), "no exp of sizes": ({"wrong": "log"}, SPREAD, ""),
    "no blur": ({"top": "blur"}, TOP, ""), "its own share is left": ({"top": "own"}, TOP, ""), "from the back": ({"top": "back"}, TOP, ""),
}, roots={"root": True})  # fmt: skip


class Weighs(nn.Module):
    """A sum of levels by positive weights that sum to one, then a filter."""

    def __init__(self, count: int, wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.wrong, self.written, self.shares, self.conv = wrong, written, nn.Parameter(torch.full((count,), 0.7)), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, *levels: torch.Tensor) -> torch.Tensor:
        shares, wrong = self.shares.relu(), self.wrong
        shares = self.shares.softmax(0) if wrong == "softmax" else shares / (shares.sum() + 1e-4)
        shares = shares / (shares.sum() + 0.5) if wrong == "twice" else shares
        if self.written:
            made = torch.einsum("l,lbchw->bchw", shares, torch.stack(levels).to(shares.dtype))
        else:
            made = sum(share * level for share, level in zip(shares, levels, strict=True))
        made = self.conv(made)
        return made if wrong == "linear" else F.silu(made)



class Levelled(nn.Module):
    def __init__(self, top: str = "", wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.top = top
        self.downs, self.head = nn.ModuleList([nn.Conv2d(n, 8, 3, 2, 1) for n in (3, 8, 8)]), nn.Conv2d(8, 4, 1)
        self.up = nn.ModuleList([Weighs(2, "", written), Weighs(2, wrong, written)])
        self.down = nn.ModuleList([Weighs(3, "", written), Weighs(2, "", written)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = self.downs[0](x)
        two = self.downs[1](one.relu())
        three = self.downs[2](two.relu())
        top = self.top
        middle = self.up[0](two, F.interpolate(three, scale_factor=2, mode="bilinear" if top == "smooth" else "nearest"))
        first = self.up[1](one, F.interpolate(two if top == "skip" else middle, scale_factor=2))
        second = self.down[0](two, two if top == "twice" else middle, F.avg_pool2d(first, 2) if top == "mean" else F.max_pool2d(first, 2))
        third = self.down[1](three, F.max_pool2d(second, 2))
        return tuple(self.head(each) for each in (first, second, third))


def levels(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum(each.float().square().mean() for each in out)  # type: ignore[return-value]


UP = ("up.1",)
family("levels that are weighed", "a stack of levels", lambda **bad: ported(
    Levelled(), Levelled(written=True, **bad), numbers(2, 3, 16, 16), loss=levels), {
    "weights normed twice": ({"wrong": "twice"}, UP, ""), "shares by exp": ({"wrong": "softmax"}, UP, ""),
    "no function": ({"wrong": "linear"}, UP, ""),
    "the level before it was mixed": ({"top": "skip"}, TOP, ""), "a level twice": ({"top": "twice"}, TOP, ""),
    "a mean of four cells": ({"top": "mean"}, TOP, ""),
})  # fmt: skip
