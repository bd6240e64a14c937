"""Consoles: shadows that are marched through, texels of a tile, maps of a lens, clocks of a wallpaper, norms of a restorer."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, SINGLE = torch.float16, torch.float32


def canyon(at: torch.Tensor) -> torch.Tensor:
    """How far a wall is from each ray: it closes in, and is never reached."""
    return 0.018 + 0.008 * torch.sin(0.4 * (at - 100))


def marched(dtype: torch.dtype, steps: int = 40) -> torch.Tensor:
    """How much of the light is left to twenty rays that start at a hundred units and go step by step. Off by 100 %."""
    start = (100 + 20 * uniform(20)).to(dtype)
    at, light = start, torch.ones(20)
    for _ in range(steps):
        free = canyon(at)
        at = at + free  # culprit: shadow-in-a-canyon
        light = torch.exp(-1.5 * (at - start).float())
    return 1 - light


class Tile:
    """A part of a texture, which coordinates of the whole are moved into."""

    def __init__(self, texels: torch.Tensor, offset: float, dtype: torch.dtype) -> None:
        self.texels, self.dtype = texels, dtype
        self.offset, self.scale = torch.tensor(offset, dtype=dtype), torch.tensor(0.5, dtype=dtype)

    def place(self, u: torch.Tensor) -> torch.Tensor:
        return (u.to(self.dtype) - self.offset) * self.scale  # culprit: texels-of-a-tile

    def sample(self, u: torch.Tensor) -> torch.Tensor:
        place = self.place(u).float()
        left = place.floor().long().clamp(0, len(self.texels) - 2)
        return torch.lerp(self.texels[left], self.texels[left + 1], place - left)


def drawn(dtype: torch.dtype) -> torch.Tensor:
    """A line of a mountain, whose coordinates are thirty-seconds of a texel beyond a thousand. Off by 19 %."""
    tile = Tile(uniform(16), 1023.0, dtype)
    return tile.sample(1023 + torch.arange(0, 600, 7) / 32)


class LensMap:
    """Where each pixel of a picture without distortion comes from, in parts of the width, as it is written to a file."""

    def __init__(self, width: int, strength: float, written: torch.dtype) -> None:
        x = (torch.arange(width) + 0.5) / width
        bent = x + strength * (x - 0.5) ** 3
        self.width, self.source = width, bent.to(written)  # culprit: map-of-a-lens

    def apply(self, line: torch.Tensor) -> torch.Tensor:
        at = self.source.float() * self.width - 0.5
        left = at.floor().long().clamp(0, self.width - 2)
        return torch.lerp(line[left], line[left + 1], at - left)


def straightened(written: torch.dtype) -> torch.Tensor:
    """A line of a fine grating, four thousand pixels wide. Off by 65 %."""
    grating = torch.sin(2 * math.pi * torch.arange(4000) / 9)
    return LensMap(4000, -0.04, written).apply(grating)


class Wallpaper:
    """A picture that moves with the seconds since it was started."""

    def __init__(self, dtype: torch.dtype, wrapped: float | None) -> None:
        self.dtype, self.wrapped = dtype, wrapped
        self.across = torch.linspace(0, 1, 64).to(dtype)

    def draw(self, seconds: float) -> torch.Tensor:
        time = torch.tensor(seconds if self.wrapped is None else seconds % self.wrapped).to(self.dtype)  # culprit: wallpaper-of-an-hour
        ripple = torch.sin(6.0 * self.across + 2 * math.pi * time)  # culprit: wallpaper-of-an-hour
        return (0.5 + 0.5 * ripple).float()


def hour(wrapped: float | None, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Eight frames after twenty minutes, a thirtieth of a second apart. Off by 84 %."""
    wallpaper = Wallpaper(dtype, wrapped)
    return torch.stack([wallpaper.draw(1203.0 + frame / 32) for frame in range(8)])


class LayerNorm2d(nn.Module):
    """A norm over the channels of each pixel, written out."""

    def __init__(self, channels: int, wide: bool, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.wide, self.eps = wide, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.dtype
        x = x.float() if self.wide else x
        middle = x - x.mean(1, keepdim=True)
        variance = middle.pow(2).mean(1, keepdim=True)  # culprit: norm-of-a-restorer
        y = (middle / (variance + self.eps).sqrt()).to(given)
        return self.weight.view(1, -1, 1, 1) * y + self.bias.view(1, -1, 1, 1)


def restored(wide: bool, dtype: torch.dtype = HALF) -> torch.Tensor:
    """A block of a network that restores pictures, whose features reach hundreds. It is nought in half."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), LayerNorm2d(8, wide)).to(dtype)
    with torch.no_grad():
        return block((600 * normal(1, 3, 6, 6)).to(dtype)).float()


BUGS = (
    Bug("shadow-in-a-canyon", "jolivain/glslsandbox-player#6", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: marched(HALF), lambda: marched(SINGLE)),
    Bug("texels-of-a-tile", "hulkholden/n64js#196", ("cancellation", "amplified-rounding", "integer-rounding"), "aten.sub.Tensor",
        lambda: drawn(HALF), lambda: drawn(SINGLE)),
    Bug("map-of-a-lens", "alicevision/AliceVision#1677", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: straightened(HALF), lambda: straightened(SINGLE)),
    Bug("wallpaper-of-an-hour", "markusfisch/ShaderEditor#10", ("amplified-rounding",), "aten.mul.Tensor",
        lambda: hour(None), lambda: hour(10.0)),
    Bug("norm-of-a-restorer", "chaiNNer-org/spandrel#332", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: restored(False), lambda: restored(True), module="1"),
)  # fmt: skip
