"""The twenty-fifth batch, second part: rays through a field, a flow between two pictures, slots that compete.

The issues: corners that are aligned (llama.cpp 25781, pytorch-pwc 33), a state whose gradient is stopped (dreamer-torch 9), a mask with its axes
exchanged (monet 1), samples that must not teach (bgflow 14).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, W, family, ported
from torch import nn


class Waves(nn.Module):
    """A point and its sines and cosines at three rates. `paired`: by one sine, whose phase makes the cosine."""

    def __init__(self, paired: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.paired, self.wrong = paired, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = 2.0 ** torch.arange(3, dtype=x.dtype) * (1.0 if self.wrong == "rate" else 0.5)
        angles = (x[..., None, :] * rates[:, None]).flatten(-2)
        if self.paired:
            both = (torch.cat([angles, angles + math.pi / 2], -1)).sin()
        else:
            both = torch.cat([angles.sin(), angles.cos()], -1)
        return torch.cat([both, x], -1) if self.wrong == "last" else torch.cat([x, both], -1)


class Field(nn.Module):
    """Density and colour of points, the colour also by the direction."""

    def __init__(self, paired: bool = False, waves: str = "", wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.waves, self.first, self.second = wrong, Waves(paired, waves), nn.Linear(21, W), nn.Linear(W + 21, W)
        self.density, self.colour, self.last = nn.Linear(W, 1), nn.Linear(W + 3, W), nn.Linear(W, 3)

    def forward(self, points: torch.Tensor, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = self.waves(points)
        y = F.relu(self.first(known))
        y = F.relu(self.second(torch.cat([y, known] if self.wrong == "join" else [known, y], -1)))
        density = F.relu(self.density(y)) if self.wrong == "relu" else F.softplus(self.density(y) - 1)
        colour = self.last(F.relu(self.colour(torch.cat([y, directions], -1))))
        return density[..., 0], colour.tanh() if self.wrong == "tanh" else colour.sigmoid()


class Render(nn.Module):
    """Light of each ray: the share of each sample is what the samples before let through. `logs`: by a sum of what is stopped."""

    def __init__(self, logs: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.logs, self.wrong = logs, wrong

    def forward(self, density: torch.Tensor, colour: torch.Tensor, depths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.cat([depths.diff(dim=-1), torch.ones_like(depths[..., :1])], -1)
        stopped = density * steps
        if self.logs:
            sums = stopped.cumsum(-1)
            through = (-(sums if self.wrong == "own" else sums - stopped)).exp()
        else:
            kept = (-stopped).exp()
            through = torch.cat([torch.ones_like(kept[..., :1]), kept.cumprod(-1)[..., :-1]], -1)
        shares = through * (1 - (-stopped).exp())
        light = (shares[..., None] * colour).sum(-2)
        return light if self.wrong == "black" else light + (1 - shares.sum(-1, keepdim=True)), shares


class Scene(nn.Module):
    """Eight samples of each ray, and six more where the first eight stop most."""

    def __init__(self, logs: bool = False, top: str = "", render: str = "", **field: Any) -> None:
        super().__init__()
        self.top, self.coarse, self.fine, self.render = top, Field(logs), Field(logs, **field), Render(logs, render)

    def forward(self, rays: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        origins, directions = rays[..., :3], rays[..., 3:]
        plain = directions if self.top == "length" else F.normalize(directions, dim=-1)
        depths = torch.linspace(0.5, 2.5, 8, dtype=rays.dtype).expand(*rays.shape[:-1], 8)
        if self.top == "inverse":
            depths = 1 / torch.linspace(2.0, 0.4, 8, dtype=rays.dtype).expand(*rays.shape[:-1], 8)
        one, shares = self.seen(self.coarse, origins, directions, plain, depths)
        shares = shares if self.top == "taught" else shares.detach()
        sums = (shares + 0.01).cumsum(-1)
        sums = sums / sums[..., -1:]
        wanted = torch.linspace(0.05, 0.95, 6, dtype=rays.dtype)
        more = (wanted[:, None] - sums[..., None, :]).div(0.1).sigmoid().mean(-1) * 2 + 0.5
        depths = more if self.top == "alone" else torch.cat([depths, more], -1)
        depths = depths if self.top == "unsorted" else depths.sort(-1).values
        return one, self.seen(self.fine, origins, directions, plain, depths)[0]

    def seen(
        self, field: nn.Module, start: torch.Tensor, way: torch.Tensor, plain: torch.Tensor, depths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        points = start[..., None, :] + way[..., None, :] * depths[..., None]
        density, colour = field(points, plain[..., None, :].expand_as(points))
        found: tuple[torch.Tensor, torch.Tensor] = self.render(density, colour, depths)
        return found


def light(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (out[0].float() - 0.3).square().mean() + (out[1].float() - 0.4).square().mean()


RAYS = numbers(3, 5, 6)
FINE = ("fine",)
family("rays through a field", "sums of what is stopped", lambda **bad: ported(Scene(), Scene(**{"logs": True, **bad}), RAYS, loss=light), {
    "a sample hides itself": ({"render": "own"}, ("render",), ""), "a black ground": ({"render": "black"}, ("render",), ""),
    "another rate": ({"waves": "rate"}, ("fine.waves",), ""), "the point last": ({"waves": "last"}, ("fine.waves",), ""),
    "joined the other way": ({"wrong": "join"}, FINE, ""), "no soft density": ({"wrong": "relu"}, FINE, ""),
    "colours below zero": ({"wrong": "tanh"}, FINE, ""),
    "directions not normed": ({"top": "length"}, TOP, ""), "even steps of the inverse": ({"top": "inverse"}, TOP, ""),
    "samples that teach": ({"top": "taught"}, TOP, ""), "new samples alone": ({"top": "alone"}, TOP, ""),
    "samples not sorted": ({"top": "unsorted"}, TOP, ""),
}, as_it_is={"logs": False})  # fmt: skip


class Look(nn.Module):
    """What two pictures have in common around where each pixel is thought to have gone. `picks`: by picked corners and their shares."""

    def __init__(self, picks: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.picks, self.wrong = picks, wrong

    def forward(self, one: torch.Tensor, two: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        size, (high, wide) = one.shape[1], one.shape[2:]
        common = torch.einsum("bchw,bcij->bhwij", one, two).float() / (1 if self.wrong == "scale" else math.sqrt(size))
        near = torch.stack(torch.meshgrid(torch.arange(-1, 2), torch.arange(-1, 2), indexing="ij"), -1).to(places.dtype)  # rows, columns
        near = near if self.wrong == "turned" else near.flip(-1)  # columns, rows
        wanted = places.movedim(1, -1)[..., None, None, :] + near
        image, wanted = common.flatten(0, 2)[:, None], wanted.flatten(0, 2).float()
        if self.picks:
            found = self.picked(image, wanted, high, wide)
        else:
            grid = torch.stack([2 * wanted[..., 0] / (wide - 1) - 1, 2 * wanted[..., 1] / (high - 1) - 1], -1)
            found = F.grid_sample(image, grid.to(image.dtype), align_corners=True)
        return found.reshape(len(one), high, wide, 9).movedim(-1, 1).to(one.dtype)

    def picked(self, image: torch.Tensor, wanted: torch.Tensor, high: int, wide: int) -> torch.Tensor:
        wanted = wanted * (wide - 1) / wide if self.wrong == "corners" else wanted
        column, row = wanted.unbind(-1)
        left, top = column.floor(), row.floor()
        made: Any = 0
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            x, y = left + j, top + i
            share = (1 - (column - x).abs()) * (1 - (row - y).abs())
            inside = (x >= 0) & (x < wide) & (y >= 0) & (y < high)
            place = (y.clamp(0, high - 1) * wide + x.clamp(0, wide - 1)).long()
            made = made + share * inside * image.flatten(1).gather(1, place.flatten(1)).view_as(share)
        return made


class Gated(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.z, self.r, self.q = wrong, *(nn.Conv2d(2 * W + 11, W, 3, padding=1) for _ in range(3))

    def forward(self, hidden: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        both = torch.cat([hidden, given], 1)
        z, r = self.z(both).sigmoid(), self.r(both).sigmoid()
        new = self.q(torch.cat([hidden if self.wrong == "reset" else r * hidden, given], 1)).tanh()
        return z * hidden + (1 - z) * new if self.wrong == "gate" else (1 - z) * hidden + z * new


class Moved(nn.Module):
    """The flow from one picture to another, in three steps. `picks` as of `Look`, and both pictures in one batch."""

    def __init__(self, picks: bool = False, look: str = "", cell: str = "", top: str = "") -> None:
        super().__init__()
        self.picks, self.top, self.look, self.cell = picks, top, Look(picks, look), Gated(cell)
        self.features, self.context = nn.Conv2d(3, W, 3, 2, 1), nn.Conv2d(3, 2 * W, 3, 2, 1)
        self.change, self.mask = nn.Conv2d(W, 2, 3, padding=1), nn.Conv2d(W, 36, 1)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> list[torch.Tensor]:
        if self.picks:
            a, b = self.features(torch.cat([one, two])).chunk(2)
        else:
            a, b = self.features(one), self.features(two)
        b = a if self.top == "same" else b
        hidden, given = self.context(two if self.top == "context" else one).chunk(2, 1)
        hidden, given = hidden if self.top == "raw" else hidden.tanh(), given.relu()
        down, right = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        start = torch.stack([right, down]).to(one.dtype).expand(len(one), -1, -1, -1)
        places, found = start, []
        for _ in range(3):
            places = places if self.top == "taught" else places.detach()
            flow = places - start
            hidden = self.cell(hidden, torch.cat([given, self.look(a, b, places), places if self.top == "places" else flow], 1))
            places = places + self.change(hidden) / 4
            found.append(self.larger(places - start, self.mask(hidden)))
        return found

    def larger(self, flow: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shares = mask.unflatten(1, (9, 4))
        shares = shares.softmax(2) if self.top == "shares" else shares.softmax(1)
        parts = F.unfold(flow if self.top == "small" else 2 * flow, 3, padding=1).view(len(flow), 2, 9, 1, 4, 4)
        made = (parts * shares[:, None]).sum(2).unflatten(2, (2, 2))
        return made.permute(0, 1, 4, 2, 5, 3).reshape(len(flow), 2, 8, 8)


def all_steps(out: list[torch.Tensor]) -> torch.Tensor:
    return sum((0.8 ** (2 - n) * each.float().square().mean() for n, each in enumerate(out)), torch.zeros(()))


FRAMES = (numbers(2, 3, 8, 8), numbers(2, 3, 8, 8).roll(1, 3))
family("a flow between pictures", "picked corners", lambda **bad: ported(Moved(), Moved(**{"picks": True, **bad}), FRAMES, loss=all_steps), {
    "rows for columns": ({"look": "turned"}, ("look",), ""), "not scaled": ({"look": "scale"}, ("look",), ""),
    "corners not aligned": ({"look": "corners"}, ("look",), ""),
    "the gate the other way": ({"cell": "gate"}, ("cell",), ""), "no reset": ({"cell": "reset"}, ("cell",), ""),
    "places that teach": ({"top": "taught"}, TOP, ""),
    "one picture twice": ({"top": "same"}, TOP, ""), "the context of the second": ({"top": "context"}, TOP, ""),
    "a state without bounds": ({"top": "raw"}, TOP, ""),
    "places for the flow": ({"top": "places"}, TOP, ""), "shares over the wrong axis": ({"top": "shares"}, TOP, ""),
    "a flow of small pixels": ({"top": "small"}, TOP, ""),
}, as_it_is={"picks": False})  # fmt: skip


class Compete(nn.Module):
    """One step of slots that share out the inputs among them. `hand`: the cell by its formulas."""

    def __init__(self, hand: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.hand, self.wrong, self.norm, self.last = hand, wrong, nn.LayerNorm(W), nn.LayerNorm(W)
        self.q, self.cell, self.up, self.down = nn.Linear(W, W, bias=False), nn.GRUCell(W, W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = k @ self.q(self.norm(slots)).mT / math.sqrt(W)
        shares = scores.softmax(1 if self.wrong == "inputs" else -1)
        shares = shares if self.wrong == "sum" else shares / (shares.sum(1, keepdim=True) + 1e-4)
        read = shares.mT @ v
        read, before = (slots, read) if self.wrong == "cell" else (read, slots)
        new = self.by_hand(read.flatten(0, 1), before.flatten(0, 1)) if self.hand else self.cell(read.flatten(0, 1), before.flatten(0, 1))
        new = new.view_as(slots)
        return new + self.down(F.relu(self.up(new if self.wrong == "norm" else self.last(new))))

    def by_hand(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        cell = self.cell
        a, b = F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, -1), F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1)
        r, z = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
        n = ((a[2] + F.linear(r * h, cell.weight_hh[2 * W :], cell.bias_hh[2 * W :])) if self.wrong == "before" else (a[2] + r * b[2])).tanh()
        return (1 - z) * n + z * h


class Objects(nn.Module):
    """Slots of a picture in three steps, of which the last alone teaches, and a picture of each slot, joined by their masks."""

    def __init__(self, hand: bool = False, step: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.inside, self.places, self.step = top, nn.Linear(6, W), nn.Linear(4, W), Compete(hand, step)
        self.start, self.k, self.v = nn.Parameter(torch.zeros(4, W)), nn.Linear(W, W, bias=False), nn.Linear(W, W, bias=False)
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype) / x.shape[1]
        place = self.places(
            torch.stack([place, place, place, place] if self.top == "grid" else [place, 1 - place, place.flip(0), 1 - place.flip(0)], -1)
        )
        y = self.norm(self.inside(x) + place)
        k, v = self.k(y), self.v(y + place if self.top == "value" else y)
        slots = self.start.to(y.dtype).expand(len(x), -1, -1)
        for number in range(3):
            if number == 2 and self.top != "whole":
                slots = slots.detach() + self.start.to(y.dtype) - self.start.detach().to(y.dtype)
            slots = self.step(self.start.to(y.dtype).expand(len(x), -1, -1) if self.top == "stays" and number == 1 else slots, k, v)
        made = self.head(slots[:, :, None] + place)
        colours, masks = made[..., :6], made[..., 6:].softmax(2 if self.top == "axis" else 1)
        return (colours * masks).sum(1)


family("slots that compete", "the cell by hand", lambda **bad: ported(Objects(), Objects(**{"hand": True, **bad})), {
    "inputs that compete": ({"step": "inputs"}, ("step",), ""), "sums and not means": ({"step": "sum"}, ("step",), ""),
    "state and input exchanged": ({"step": "cell"}, ("step", "step.cell"), ""),
    "a reset before the product": ({"step": "before"}, ("step", "step.cell"), ""),
    "no norm before the layer": ({"step": "norm"}, ("step",), ""), "all steps teach": ({"top": "whole"}, TOP, ""),
    "a step that begins anew": ({"top": "stays"}, TOP, ""),
    "places in values": ({"top": "value"}, TOP, ""), "masks over places": ({"top": "axis"}, TOP, ""), "one direction": ({"top": "grid"}, TOP, ""),
}, as_it_is={"hand": False})  # fmt: skip
