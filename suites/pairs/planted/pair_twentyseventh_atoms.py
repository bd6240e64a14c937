"""The twenty-seventh batch: molecules with forces, whose pairs are in a table or in a list.

The issues: forces that are not the gradient of the energy (OpenEquivariance 211), a norm that is left out (graph-pes 95), the smooth end of a
neighbourhood (torchmd-net 144), sums over neighbours by their usual number (deepchem 5109).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, W, ported
from pair_twentyseventh import family
from torch import nn

ATOMS = torch.tensor([1, 2, 0, 3, 1, 2])
PLACES = numbers(6, 3) * 1.3
END = 3.5


class Message(nn.Module):
    """Each atom gets what its neighbours hold, weighed by the distance, which ends smoothly. Atoms: (atoms, W); distances: (atoms, atoms)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.value, self.first, self.second, self.out = nn.LayerNorm(W), nn.Linear(W, W), nn.Linear(8, W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        near = (far < END) & ~torch.eye(len(far), dtype=torch.bool)
        waves = (-((far[..., None] - torch.linspace(0, END, 8)) ** 2) * 4).exp()
        end = (0.5 * ((far * math.pi / END).cos() + 1)).masked_fill(~near, 0.0)
        weigh = self.second(F.silu(self.first(waves.to(x.dtype)))) * end[..., None].to(x.dtype)
        gained = torch.einsum("ijw,jw->iw", weigh, self.value(self.norm(x))) / math.sqrt(5)
        return x + self.out(F.silu(gained))


def distances(places: torch.Tensor) -> torch.Tensor:
    """From each to each, and 1 to itself, whose gradient is no number."""
    apart = places[:, None] - places[None]
    return (apart.square().sum(-1) + torch.eye(len(places), dtype=places.dtype)).sqrt()


class Molecule(nn.Module):
    """The energy, and forces, which are its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.layers = nn.Embedding(4, W), nn.ModuleList([Message() for _ in range(3)])
        self.norm, self.head, self.shift = nn.LayerNorm(W), nn.Linear(W, 1), nn.Embedding(4, 1)

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            x, far = self.kinds(kinds), distances(places)
            for layer in self.layers:
                x = layer(x, far)
            energy = (self.head(self.norm(x)) + self.shift(kinds)).sum()
            (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return energy, -slope


class Edges(Message):
    """The same over a list of pairs."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor, to: torch.Tensor, by: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        wrong = self.wrong
        to, by = (by, to) if wrong == "turned" else (to, by)
        waves = (-((far[:, None] - torch.linspace(0, END, 8)) ** 2) * (8 if wrong == "narrow" else 4)).exp()
        end = 0.5 * ((far * math.pi / END).cos() + 1)
        end = torch.ones_like(end) if wrong == "sharp" else end.detach() if wrong == "steady" else end
        weigh = self.second(F.silu(self.first(waves.to(x.dtype))))
        values = self.value(x if wrong == "norm" else self.norm(x))[by]
        values = values + self.second.bias if wrong == "bias" else values
        told = weigh * values * end[:, None].to(values.dtype)
        gained = torch.zeros_like(x, dtype=told.dtype).index_add(0, to, told)
        count = torch.bincount(to, minlength=len(x)).clamp(min=1)[:, None]
        gained = gained / (count if wrong == "mean" else 5 if wrong == "five" else math.sqrt(5))
        return self.out(F.silu(gained)) + (0 if wrong == "residual" else x)


class Listed(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", late: bool = False) -> None:
        super().__init__()
        self.top, self.late, self.kinds = top, late, nn.Embedding(4, W)
        self.layers = nn.ModuleList([Edges(wrong if n == 1 else "") for n in range(3)])
        self.norm, self.head, self.shift = nn.LayerNorm(W), nn.Linear(W, 1), nn.Embedding(4, 1)

    def pairs(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        near = distances(places.detach()) < (END / 2 if self.top == "short" else END)
        near = near.triu() if self.top == "half" else near
        to, by = (near & ~torch.eye(len(places), dtype=torch.bool)).nonzero(as_tuple=True)
        return (to, by) if not self.late else (to.flip(0), by.flip(0))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            places, top = places.detach().requires_grad_(), self.top
            to, by = self.pairs(places)
            x, far = self.kinds(kinds), (places[to] - places[by]).norm(dim=-1)
            for number, layer in enumerate(self.layers):
                x = layer(x, to, by, far.detach() if top == "held" and number == 1 else far)
            each = self.head(self.norm(x))
            energy = (each if top == "unshifted" else each + self.shift(kinds)).sum()
            (slope,) = torch.autograd.grad(energy, places, create_graph=top != "untaught", retain_graph=True)
        return energy, slope if top == "sign" else -slope


def both(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square() * 0.01 + out[1].float().square().mean()


def molecule(**ways: object) -> Made:
    return ported(Molecule(), Listed(**ways), (ATOMS, PLACES), loss=both)  # type: ignore[arg-type]


family("molecules with forces", "a list of pairs", molecule, {
    "a sharp end": ({"wrong": "sharp"}, B, ""), "an end that gives no force": ({"wrong": "steady"}, B, ""),
    "waves too narrow": ({"wrong": "narrow"}, B, ""),
    "no norm": ({"wrong": "norm"}, B, ""), "a mean of neighbours": ({"wrong": "mean"}, B, ""), "divided by the number": ({"wrong": "five"}, B, ""),
    "no residual": ({"wrong": "residual"}, B, ""), "a bias of weights with values": ({"wrong": "bias"}, B, ""),
    "half of the pairs": ({"top": "half"}, TOP, ""), "a shorter end for the list": ({"top": "short"}, TOP, ""),
    "a layer without a force": ({"top": "held"}, TOP, ""), "energies without a shift": ({"top": "unshifted"}, TOP, ""),
    "forces the other way": ({"top": "sign"}, TOP, ""), "forces that do not teach": ({"top": "untaught"}, TOP, ""),
}, the_list_turned_round={"late": True})  # fmt: skip
