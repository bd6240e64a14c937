"""Keys of an animation, bones, texels, corners, slopes and scrolling water: places that are kept or computed in half."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


class Track:
    """Keys of a movement, which are compressed to half; about a point of their own, if they are to be."""

    def __init__(self, keys: torch.Tensor, centred: bool) -> None:
        self.origin = keys.mean(0) if centred else torch.zeros(3)
        self.keys = (keys - self.origin).to(HALF)  # culprit: helicopter-far-away

    def at(self, time: torch.Tensor) -> torch.Tensor:
        place = time.clamp(0, len(self.keys) - 1.001)
        low = place.floor().long()
        first, second = self.keys[low].float(), self.keys[low + 1].float()
        return torch.lerp(first, second, (place - low)[:, None]) + self.origin


def flown(centred: bool) -> torch.Tensor:
    """Speeds of a helicopter a kilometre from the origin, in metres a frame. Off by 280 %."""
    keys = torch.tensor([1000.0, 240, -730]) + (0.05 * normal(40, 3)).cumsum(0)
    return Track(keys, centred).at(torch.linspace(0, 39, 200)).diff(dim=0)


def skinned(vertices: torch.Tensor, turns: torch.Tensor, shifts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Vertices where their bones move them."""
    moved = torch.bmm(vertices.expand(len(turns), -1, -1), turns.mT) + shifts[:, None]  # culprit: bones-in-the-world
    return (weights.mT[..., None] * moved).sum(0)  # culprit: bones-in-the-world


def seen(about_the_camera: bool) -> torch.Tensor:
    """Vertices of a soldier as a camera sees them that stands beside him, three hundred metres from the origin; bones are half. Off by 31 %."""
    angles = 0.4 * normal(5)
    turns = torch.stack([torch.stack([a.cos(), -a.sin(), 0 * a, a.sin(), a.cos(), 0 * a, 0 * a, 0 * a, 1 + 0 * a]).view(3, 3) for a in angles])
    camera = torch.tensor([301.3, 12.6, -287.9])
    shifts = camera + 0.8 * normal(5, 3, seed=1)
    vertices, weights = 0.3 * normal(60, 3, seed=2), torch.softmax(2 * normal(60, 5, seed=3), -1)
    if about_the_camera:
        return skinned(vertices.to(HALF), turns.to(HALF), (shifts - camera).to(HALF), weights.to(HALF)).float()
    world = skinned(vertices.to(HALF), turns.to(HALF), shifts.to(HALF), weights.to(HALF))  # culprit: bones-in-the-world
    return (world - camera.to(HALF)).float()  # culprit: bones-in-the-world


class Atlas:
    """A row of texels that is read between them."""

    def __init__(self, texels: torch.Tensor) -> None:
        self.texels = texels

    def read(self, u: torch.Tensor) -> torch.Tensor:
        place = u * len(self.texels) - 0.5  # culprit: texels-of-an-atlas
        low = place.floor()
        part, first = (place - low).float(), low.long().clamp(0, len(self.texels) - 2)
        return torch.lerp(self.texels[first], self.texels[first + 1], part)


def sprite(dtype: torch.dtype) -> torch.Tensor:
    """A sprite of eighty texels near the end of a row of 4096, by coordinates in half. Off by 60 %."""
    coordinates = torch.linspace(3700.5, 3780.5, 161) / 4096
    return Atlas(torch.sin(0.4 * torch.arange(4096)) + 0.3 * uniform(4096)).read(coordinates.to(dtype))  # culprit: texels-of-an-atlas


def corner(places: torch.Tensor, centre: torch.Tensor, half_size: torch.Tensor, radius: float) -> torch.Tensor:
    """How much of each pixel a box with rounded corners covers."""
    away = (places - centre).abs() - half_size + radius  # culprit: rounded-corner
    outside = away.clamp(min=0).square().sum(-1).sqrt() - radius
    return (0.5 - outside).clamp(0, 1).float()


def corner_on_a_screen(dtype: torch.dtype) -> torch.Tensor:
    """The lower right corner of a box on a large screen, whose pixels are at halves; half has none of them there. Off by 70 %."""
    row, column = torch.meshgrid(torch.arange(24) + 1190.5, torch.arange(24) + 1720.5, indexing="ij")
    places = torch.stack([column, row], -1).to(dtype)  # culprit: rounded-corner
    return corner(places, torch.tensor([1500.0, 1000.0]).to(dtype), torch.tensor([240.0, 210.0]).to(dtype), 16.0)


class DepthImage:
    """Distances from a camera, as a renderer stores them."""

    def __init__(self, depth: torch.Tensor, stored: torch.dtype) -> None:
        self.depth = depth.to(stored)  # culprit: slope-of-a-wall

    def slopes(self) -> torch.Tensor:
        """How distances change from pixel to pixel, along rows and columns."""
        depth = self.depth.float()
        return torch.stack([depth[:-1, 1:] - depth[:-1, :-1], depth[1:, :-1] - depth[:-1, :-1]])  # culprit: slope-of-a-wall


def wall(stored: torch.dtype) -> torch.Tensor:
    """Normals of a wall 3.3 metres away, which is not quite straight; half has steps of two millimetres there. Off by 51 %."""
    row, column = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    dx, dy = DepthImage(3.3 + 0.0011 * column - 0.0007 * row + 0.002 * torch.sin(row / 7), stored).slopes()
    normals = torch.stack([-dx, -dy, torch.full_like(dx, 0.0025)], -1)
    return normals / normals.norm(dim=-1, keepdim=True)


class Water:
    """Waves that a texture scrolls over a pond."""

    def __init__(self, speed: float, wrapped: bool) -> None:
        self.speed, self.wrapped = speed, wrapped

    def heights(self, places: torch.Tensor, clock: torch.Tensor) -> torch.Tensor:
        if self.wrapped:
            shift = torch.remainder(clock * self.speed, 1).to(places.dtype)
        else:
            shift = clock.to(places.dtype) * self.speed  # culprit: water-after-an-hour
        place = places + shift  # culprit: water-after-an-hour
        return torch.sin(6.2832 * (place - place.floor()))


def pond(wrapped: bool) -> torch.Tensor:
    """Heights of eight frames, an hour after the game began, in half. Off by 140 %."""
    water, places = Water(0.11, wrapped), torch.linspace(0, 0.98, 50).to(HALF)
    return torch.stack([water.heights(places, torch.tensor(3605.3 + 0.27 * frame)) for frame in range(8)]).float()


BUGS = (
    Bug("helicopter-far-away", "guillaumeblanc/ozz-animation#133", ("amplified-rounding", "cancellation", "absorption", "integer-rounding"),
        "aten._to_copy.default", lambda: flown(False), lambda: flown(True)),
    Bug("bones-in-the-world", "mrdoob/three.js#16687", ("cancellation", "amplified-rounding", "absorption"), "aten.sub.Tensor",
        lambda: seen(False), lambda: seen(True)),
    Bug("texels-of-an-atlas", "EsotericSoftware/spine-runtimes#2892", ("integer-rounding", "amplified-rounding", "absorption", "cancellation"),
        "aten._to_copy.default", lambda: sprite(HALF), lambda: sprite(WIDE)),
    Bug("rounded-corner", "ppy/osu-framework#2680", ("amplified-rounding", "cancellation", "integer-rounding"), "aten._to_copy.default",
        lambda: corner_on_a_screen(HALF), lambda: corner_on_a_screen(WIDE)),
    Bug("slope-of-a-wall", "apple/ml-hypersim#88", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: wall(HALF),
        lambda: wall(WIDE)),
    Bug("water-after-an-hour", "wave-harmonic/crest#216", ("amplified-rounding", "cancellation", "absorption", "integer-rounding"),
        "aten.mul.Tensor", lambda: pond(False), lambda: pond(True)),
)  # fmt: skip
