"""The twenty-ninth batch, fourth part: places by a filter, and a denoiser with levels of noise.

The issues: a norm over padding (pytorch/audio 2242), an even filter and its norm (transformers 11617), a mask that is dropped (transformers 47739);
the spread of the data (diffusers 9563), scales that are lost (physicsnemo 229), a scale of the condition too (ai2cm/ace 356), levels of noise that
are not multiplied (alphafold3-pytorch 124).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, State, W, ported
from pair_twentyninth import family
from torch import nn


def normed(state: State) -> State:
    """The weight of the filter, which `model` has as a length for each tap and a direction."""
    found = dict(state)
    length, way = found.pop("places.length"), found.pop("places.way")
    found["places.conv.weight"] = length * way / way.norm(dim=(0, 1), keepdim=True)
    found["places.conv.bias"] = found.pop("places.bias")
    return found


def twisted(state: State) -> State:
    found = normed(state)
    found["places.conv.weight"] = state["places.length"] * state["places.way"] / state["places.way"].norm(dim=(1, 2), keepdim=True)
    return found


class Lengthy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.length, self.way, self.bias = nn.Parameter(torch.ones(1, 1, 4)), nn.Parameter(torch.zeros(W, 4, 4)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.length * self.way / self.way.norm(dim=(0, 1), keepdim=True)
        return F.gelu(F.conv1d(x.mT, weight, self.bias, padding=2, groups=4)[..., :-1].mT)


class Plainly(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.conv = wrong, nn.Conv1d(W, W, 4, padding=0 if wrong == "left" else 2, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(F.pad(x.mT, (3, 0))) if self.wrong == "left" else self.conv(x.mT)
        y = y if self.wrong == "left" else y[..., 1:] if self.wrong == "first" else y[..., : x.shape[1]]
        return (y if self.wrong == "linear" else F.gelu(y)).mT


SOUNDS = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)


class Hears(nn.Module):
    """Frames whose places a filter tells. Rows are padded."""

    def __init__(self, places: nn.Module, top: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.top, self.kernel, self.first, self.places, self.norm = top, kernel, nn.Linear(6, W), places, nn.LayerNorm(W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        top, x = self.top, self.first(x)
        x = x if top == "unmasked" else x * mask[..., None]
        x = self.norm(x) + self.places(x) if top == "norm" else self.norm(x + self.places(x))
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = (torch.ones_like(mask) if top == "mask" else mask)[:, None]
        if self.kernel:
            return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
        return self.out((q @ k.mT / math.sqrt(W)).masked_fill(~seen, -math.inf).softmax(-1) @ v)


PLACES = ("places",)


def hears(wrong: str = "", top: str = "") -> Made:
    """Models that are served: the direction of a weight is no weight of the port."""
    convert = twisted if wrong == "weight" else normed
    model, other, inputs, _ = ported(Hears(Lengthy()), Hears(Plainly(wrong), top, True), (numbers(2, 9, 6), SOUNDS), convert)
    return model.requires_grad_(False), other.requires_grad_(False), inputs, {}


family("places by a filter", "a folded weight", hears, {
    "lengths along another axis": ({"wrong": "weight"}, ("places", "places.conv"), ""), "the first place left out": ({"wrong": "first"}, PLACES, ""),
    "taps of the past alone": ({"wrong": "left"}, PLACES, ""), "padding is heard by the filter": ({"top": "unmasked"}, TOP, ""),
    "a norm before the places": ({"top": "norm"}, TOP, ""), "padding is seen": ({"top": "mask"}, TOP, ""),
})  # fmt: skip


DATA = 0.5
LEVELS = torch.tensor([0.2, 1.5, 4.0])


class Level(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.first, self.second = wrong, nn.Linear(16, W), nn.Linear(W, W)

    def forward(self, level: torch.Tensor) -> torch.Tensor:
        angles = level[:, None] * 30.0 ** (-torch.arange(8) / 8) * (2 * math.pi if self.wrong == "turns" else 1)
        waves = torch.cat([angles.sin(), angles.cos()] if self.wrong == "sines" else [angles.cos(), angles.sin()], -1)
        return self.second(F.silu(self.first(waves.to(level.dtype))))


class Cleans(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.norm, self.one, self.two = wrong, nn.GroupNorm(4, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=1)
        self.level = nn.Linear(W, 16)

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        scale, shift = self.level(F.silu(level))[..., None].chunk(2, 1)
        y = self.one(F.silu(x))
        y = torch.addcmul(shift, self.norm(y), scale if self.wrong == "one" else scale + 1)
        y = x + self.two(F.silu(y))
        return y if self.wrong == "root" else y * 0.5**0.5


class Inside(nn.Module):
    def __init__(self, level: str = "", wrong: str = "") -> None:
        super().__init__()
        self.first, self.level, self.last = nn.Conv1d(6, 8, 3, padding=1), Level(level), nn.Conv1d(8, 4, 3, padding=1)
        self.layers = nn.ModuleList([Cleans(wrong if n == 1 else "") for n in range(3)])

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        x, told = self.first(x), self.level(level)
        for layer in self.layers:
            x = layer(x, told)
        return self.last(x)


class Scaled(nn.Module):
    """A network within scales of the noise: what goes in, what comes out, what is passed by, and the level. The loss is weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Inside()

    def forward(self, clean: torch.Tensor, noise: torch.Tensor, more: torch.Tensor, level: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sigma = level[:, None, None]
        x = clean + noise * sigma
        total = sigma**2 + DATA**2
        made = self.inside(torch.cat([x / total.sqrt(), more], 1), level.log() / 4)
        found = x * DATA**2 / total + made * sigma * DATA / total.sqrt()
        return found, (found - clean).square() * total / (sigma * DATA) ** 2


class Rescaled(nn.Module):
    """The same by angles: the level is an angle whose tangent is the noise by the data."""

    def __init__(self, top: str = "", **inside: str) -> None:
        super().__init__()
        self.top, self.inside = top, Inside(**inside)

    def forward(self, clean: torch.Tensor, noise: torch.Tensor, more: torch.Tensor, level: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top, sigma = self.top, level[:, None, None]
        angle = torch.atan2(sigma, torch.ones_like(sigma) * (1 if top == "data" else DATA))
        data = 1 if top == "data" else DATA
        x = clean + (noise * sigma * DATA if top == "noise" else noise * sigma)
        inner = angle.cos() / data
        given = torch.cat([x, more], 1) * inner if top == "both" else torch.cat([x if top == "raw" else x * inner, more], 1)
        made = self.inside(given, level if top == "level" else level.log2() / 4 if top == "log2" else level.log() / 4)
        passed = 0 if top == "skip" else angle.cos() ** 2
        found = x * passed + made * angle.sin() * (1 if top == "out" else data)
        weigh = 1 / angle.sin().square() / data**2
        return found, (found - clean).square() * (1 if top == "even" else weigh)


def weighed(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[1].float().mean()


GIVEN = (numbers(3, 4, 8), numbers(3, 4, 8).flip(-1), numbers(3, 2, 8), LEVELS)
family("levels of noise", "angles", lambda **bad: ported(Scaled(), Rescaled(**bad), GIVEN, loss=weighed), {
    "a spread of one": ({"top": "data"}, TOP, ""), "nothing passed by": ({"top": "skip"}, TOP, ""),
    "what goes in not scaled": ({"top": "raw"}, TOP, ""),
    "the condition scaled too": ({"top": "both"}, TOP, ""), "noise of the data": ({"top": "noise"}, TOP, ""),
    "a level as it is": ({"top": "level"}, TOP, ""),
    "what comes out not scaled": ({"top": "out"}, TOP, ""), "sines before cosines": ({"level": "sines"}, ("inside.level",), ""),
    "a scale without one": ({"wrong": "one"}, ("inside.layers.1",), ""),
})  # fmt: skip
