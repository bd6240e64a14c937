"""The twenty-seventh batch, fourth part: points that are looked up in maps of several sizes, and a diffusion of two streams.

The issues: rows for columns in the scale of offsets (Deformable-DETR 6), points and levels that are not aligned (RT-DETR 505), sizes of boxes
(mmdetection 7686), sines for cosines of a time (flashinfer 3819), shift for scale (diffusers 7369), a scale that is overwritten (diffusers 6736).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, State, W, ported
from pair_twentyseventh import family, rotated
from torch import nn

SIZES = ((4, 6), (2, 3))
PICTURE = numbers(2, 3, 8, 12)
POINTS = 3


class Lookup(nn.Module):
    """Attention of queries to few points of each map: two heads. Places are x, y between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.offsets, self.shares, self.out = nn.Linear(W, W), nn.Linear(W, 24), nn.Linear(W, 12), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, at: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        values = self.value(memory).unflatten(-1, (2, 8)).split([h * w for h, w in SIZES], 1)
        offsets = self.offsets(x).unflatten(-1, (2, 2, POINTS, 2))  # heads, levels, points, x and y
        shares = self.shares(x).unflatten(-1, (2, 2 * POINTS)).softmax(-1).unflatten(-1, (2, POINTS))
        made: Any = 0
        for level, (h, w) in enumerate(SIZES):
            places = at[:, :, None, None] + offsets[:, :, :, level] / torch.tensor([w, h], dtype=offsets.dtype)
            grid = (2 * places - 1).transpose(1, 2).flatten(0, 1)  # batch and heads, queries, points, 2
            maps = values[level].permute(0, 2, 3, 1).reshape(-1, 8, h, w)
            found = F.grid_sample(maps, grid.to(maps.dtype), align_corners=False).unflatten(0, (len(x), 2))
            made = made + torch.einsum("bhcqp,bqhp->bqhc", found, shares[:, :, :, level].to(found.dtype))
        return self.out(made.flatten(2))


class Refining(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.norm, self.attend, self.feed, self.move = nn.LayerNorm(W), attend, nn.Linear(W, W), nn.Linear(W, 2)

    def forward(self, x: torch.Tensor, at: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x), at, memory)
        return x + F.relu(self.feed(x))


class Finder(nn.Module):
    """Queries with places that each layer moves; a place teaches the layer that made it alone."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.maps = nn.ModuleList([nn.Conv2d(3, W, 2, 2), nn.Conv2d(W, W, 2, 2)])
        self.level, self.queries = nn.Parameter(torch.zeros(2, W)), nn.Parameter(torch.zeros(5, W))
        self.places, self.layers, self.head = nn.Linear(W, 2), nn.ModuleList([Refining(each) for each in layers]), nn.Linear(W, 4)

    def memory(self, picture: torch.Tensor) -> torch.Tensor:
        first = self.maps[0](picture)
        return torch.cat([each.flatten(2).mT + self.level[n] for n, each in enumerate((first, self.maps[1](first.relu())))], 1)

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, ...]:
        memory, x = self.memory(picture), self.queries.expand(len(picture), -1, -1)
        at, found = self.places(x).sigmoid(), []
        for layer in self.layers:
            x = layer(x, at, memory)
            new = (layer.move(x) + torch.logit(at.clamp(1e-3, 1 - 1e-3))).sigmoid()
            found.append(new)
            at = new.detach()
        return self.head(x), torch.stack(found)


class Gathered(Lookup):
    """The same by the four cells around each point, of all maps in one row."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def cells(self, values: torch.Tensor, places: torch.Tensor, size: tuple[int, int], begun: int) -> torch.Tensor:
        (h, w), wrong = size, self.wrong
        corners = torch.tensor([w - 1, h - 1]), torch.tensor([w, h])
        at = places * corners[0] if wrong == "corners" else places * corners[1] - 0.5
        low = at.floor()
        found: Any = 0
        for dx in (0, 1):
            for dy in (0, 1):
                cell = low + torch.tensor([dx, dy])
                near = (1 - (at - cell).abs()).prod(-1)
                inside = ((cell >= 0) & (cell < corners[1])).all(-1)
                x, y = cell[..., 0].clamp(0, w - 1).long(), cell[..., 1].clamp(0, h - 1).long()
                flat = begun + (x * h + y if wrong == "columns" else y * w + x)  # batch, queries, heads, points
                number, head = torch.arange(len(values))[:, None, None, None], torch.arange(2)[:, None]
                share = near if wrong == "border" else near * inside
                found = found + values[number, flat, head] * share[..., None].to(values.dtype)
        return found

    def forward(self, x: torch.Tensor, at: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        wrong, values, offsets = self.wrong, self.value(memory).unflatten(-1, (2, 8)), self.offsets(x).unflatten(-1, (2, 2, POINTS, 2))
        offsets = self.offsets(x).unflatten(-1, (2, POINTS, 2, 2)).transpose(3, 4) if wrong == "levels" else offsets
        shares = self.shares(x).unflatten(-1, (2, 2, POINTS))
        shares = shares.softmax(-1) if wrong == "apart" else shares.flatten(-2).softmax(-1).unflatten(-1, (2, POINTS))
        made, begun = 0, 0
        for level, (h, w) in enumerate(SIZES):
            scale = torch.tensor([h, w] if wrong == "rows" else [w, h], dtype=offsets.dtype)
            places = at[:, :, None, None] + offsets[:, :, :, level] / (POINTS if wrong == "count" else scale)
            found = self.cells(values, places, (h, w), begun)
            made = made + (found * shares[:, :, :, level, :, None].to(found.dtype)).sum(-2)
            begun += h * w
        return self.out(made.flatten(2))


class Moving(Finder):
    def __init__(self, layers: list[nn.Module], top: str = "") -> None:
        super().__init__(layers)
        self.top = top

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top, memory, x = self.top, self.memory(picture), self.queries.expand(len(picture), -1, -1)
        first = at = self.places(x).sigmoid()
        found = []
        for number, layer in enumerate(self.layers):
            given = first if top == "first" and number == 1 else at.flip(-1) if top == "turned" and number == 1 else at
            x = layer(x, given, memory)
            move = layer.move(x)
            new = at + move.tanh() if top == "added" and number == 1 else (move + torch.logit(at, 1e-3)).sigmoid()
            found.append(new)
            at = new if top == "taught" else new.detach()
        return self.head(x), torch.stack(found)


def both(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum(each.float().square().mean() for each in out)  # type: ignore[return-value]


def finder(wrong: str = "", top: str = "") -> Made:
    model, other = Finder([Lookup() for _ in range(3)]), Moving([Gathered(wrong if n == 1 else "") for n in range(3)], top)
    return ported(model, other, PICTURE, loss=both)


LOOK = ("layers.1.attend",)
family("points in maps", "cells by number", finder, {
    "offsets by rows for columns": ({"wrong": "rows"}, LOOK, ""), "corners for cells": ({"wrong": "corners"}, LOOK, ""),
    "cells by columns": ({"wrong": "columns"}, LOOK, ""), "shares of each map": ({"wrong": "apart"}, LOOK, ""),
    "points of the other map": ({"wrong": "levels"}, LOOK, ""), "offsets by the count of points": ({"wrong": "count"}, LOOK, ""),
    "the border goes on": ({"wrong": "border"}, LOOK, ""), "the first places": ({"top": "first"}, TOP, ""),
    "x and y exchanged": ({"top": "turned"}, TOP, ""), "moves that are added": ({"top": "added"}, TOP, ""),
    "places that teach earlier layers": ({"top": "taught"}, TOP, ""),
})  # fmt: skip


def wave(time: torch.Tensor, turned: bool = False) -> torch.Tensor:
    angles = time[:, None] * 1000 ** (-torch.arange(8) / 8)
    return torch.cat([angles.sin(), angles.cos()] if turned else [angles.cos(), angles.sin()], -1)


class Time(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.first, self.second, self.guide = wrong, nn.Linear(16, W), nn.Linear(W, W), nn.Linear(16, W)

    def forward(self, time: torch.Tensor, guidance: torch.Tensor) -> torch.Tensor:
        made = self.second(F.silu(self.first(wave(time if self.wrong == "unit" else 100 * time, self.wrong == "sines").to(time.dtype))))
        return made if self.wrong == "unguided" else made + self.guide(wave(guidance).to(time.dtype))


class Modulated(nn.Module):
    """A stream's own weights: norms that are moved and scaled by the time, queries, keys and values, and a feed."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.qkv, self.out = nn.Linear(W, 6 * W), nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.q_norm, self.k_norm, self.up, self.down = nn.RMSNorm(W, eps=1e-5), nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 24), nn.Linear(24, W)


def placed(count: int) -> torch.Tensor:
    return torch.arange(count)[:, None] * 10.0 ** (-torch.arange(W // 2) / 8)


class Double(nn.Module):
    """Attention of words and patches together, with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Modulated(), Modulated()

    def forward(self, image: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        streams, found, queries = (self.text, self.image), [], []
        for one, x in zip(streams, (text, image), strict=True):
            moved = one.moved(F.silu(time))[:, None].chunk(6, -1)
            y = F.layer_norm(x, (W,)) * (1 + moved[1]) + moved[0]
            q, k, v = one.qkv(y).chunk(3, -1)
            queries.append((one.q_norm(q), one.k_norm(k), v))
            found.append(moved)
        q, k, v = (torch.cat(each, 1) for each in zip(*queries, strict=True))
        angles = placed(q.shape[1])
        made = ((rotated(q, angles) @ rotated(k, angles).mT / 4).softmax(-1) @ v).split([text.shape[1], image.shape[1]], 1)
        results = []
        for one, x, y, moved in zip(streams, (text, image), made, found, strict=True):
            x = x + moved[2] * one.out(y)
            y = F.layer_norm(x, (W,)) * (1 + moved[4]) + moved[3]
            results.append(x + moved[5] * one.down(F.gelu(one.up(y), approximate="tanh")))
        return results[1], results[0]


class Fused(nn.Module):
    """The same in one pass of methods: the kernel of torch, and queries of words after those of patches if `last`."""

    def __init__(self, wrong: str = "", last: bool = False) -> None:
        super().__init__()
        self.wrong, self.last, self.image, self.text = wrong, last, Modulated(), Modulated()

    def entered(self, one: Modulated, x: torch.Tensor, moved: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        shift, scale = (moved[1], moved[0]) if self.wrong == "order" else moved[:2]
        y = torch.addcmul(shift, F.layer_norm(x, (W,)), scale if self.wrong == "one" else scale + 1)
        q, k, v = one.qkv(y).unflatten(-1, (3, W)).unbind(-2)
        plain = self.wrong == "text" and one is self.text
        return (q, k, v) if plain else (one.q_norm(q), one.k_norm(k), v)

    def left(self, one: Modulated, x: torch.Tensor, y: torch.Tensor, moved: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x = torch.addcmul(x, moved[5] if self.wrong == "gate" else moved[2], one.out(y))
        y = F.layer_norm(x, (W,)) * (1 + moved[4]) + moved[3]
        y = one.down(F.gelu(one.up(y), approximate="none" if self.wrong == "erf" else "tanh"))
        return x + (y if self.wrong == "ungated" else y * moved[5])

    def forward(self, image: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moved = [one.moved(F.silu(time))[:, None].chunk(6, -1) for one in (self.image, self.text)]
        made = [self.entered(one, x, each) for one, x, each in zip((self.image, self.text), (image, text), moved, strict=True)]
        q, k, v = (torch.cat(each if self.last else each[::-1], 1) for each in zip(*made, strict=True))
        count, words = image.shape[1], text.shape[1]
        angles = placed(count + words)
        angles = angles.roll(-words, 0) if self.last and self.wrong != "places" else angles
        y = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v, scale=0.25)
        parts = y.split([count, words] if self.last else [words, count], 1)
        seen, read = parts if self.last else parts[::-1]
        return self.left(self.image, image, seen, moved[0]), self.left(self.text, text, read, moved[1])


class Diffusion(nn.Module):
    def __init__(self, layers: list[nn.Module], time: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.patch, self.words, self.time = top, nn.Linear(12, W), nn.Linear(6, W), Time(time)
        self.layers, self.moved, self.head = nn.ModuleList(layers), nn.Linear(W, 2 * W), nn.Linear(W, 12)

    def forward(self, picture: torch.Tensor, text: torch.Tensor, time: torch.Tensor, guidance: torch.Tensor) -> torch.Tensor:
        top, cells = self.top, picture.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # batch, channels, rows, 2, columns, 2
        cells = cells.permute(0, 2, 4, 3, 5, 1) if top == "channels" else cells.permute(0, 2, 4, 1, 3, 5)
        image, text, when = self.patch(cells.flatten(3).flatten(1, 2)), self.words(text), self.time(time, guidance)
        for number, layer in enumerate(self.layers):
            image, text = layer(image, text, when.detach() if top == "untimed" and number == 1 else when)
        shift, scale = self.moved(F.silu(when))[:, None].chunk(2, -1)
        shift, scale = (scale, shift) if top == "last" else (shift, scale)
        y = self.head(F.layer_norm(image, (W,)) * (1 + scale) + shift).unflatten(-1, (3, 2, 2)).unflatten(1, (2, 3))
        return y.permute(0, 3, 1, 5, 2, 4).reshape(picture.shape) if top == "patches" else y.permute(0, 3, 1, 4, 2, 5).reshape(picture.shape)


GIVEN = (numbers(2, 3, 4, 6), numbers(2, 5, 6), torch.tensor([0.3, 0.8]), torch.tensor([2.0, 3.5]))


def diffused(wrong: str = "", last: bool = False, load: str = "", **ways: str) -> Made:
    def convert(state: State) -> State:
        found = dict(state)
        if load == "moved":
            for name in ("moved.weight", "moved.bias"):
                found[name] = state[name].roll(W, 0)
        return found

    other = Diffusion([Fused(wrong if n == 1 else "", last) for n in range(3)], **ways)
    return ported(Diffusion([Double() for _ in range(3)]), other, GIVEN, convert)


TIME = ("time",)
family("two streams of a diffusion", "the kernel of torch", diffused, {
    "sines for cosines": ({"time": "sines"}, TIME, ""), "a time between 0 and 1": ({"time": "unit"}, TIME, ""),
    "no guidance": ({"time": "unguided"}, TIME, ""),
    "shift for scale": ({"wrong": "order"}, B, ""), "a scale without one": ({"wrong": "one"}, B, ""),
    "words without norms": ({"wrong": "text"}, B, ""),
    "the other gate": ({"wrong": "gate"}, B, ""), "no gate": ({"wrong": "ungated"}, B, ""), "gelu by erf": ({"wrong": "erf"}, B, ""),
    "places of the other order": ({"wrong": "places", "last": True}, B, ""), "the last shift for scale": ({"top": "last"}, TOP, ""),
    "the last weight not turned": ({"load": "moved"}, ("moved",), ""), "patches with channels last": ({"top": "channels"}, TOP, ""),
    "patches on their side": ({"top": "patches"}, TOP, ""), "a time that one layer does not teach": ({"top": "untimed"}, TOP, ""),
}, words_last={"last": True})  # fmt: skip
