"""Handhelds: pictures drawn with numbers of sixteen bits, as small graphics processors do: waves, boxes, patterns, figures, roads and fog."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE = torch.float16, torch.float32


class Jellyfish:
    """Tentacles that sway with time, each point later than the one above it."""

    def __init__(self, points: int, kind: torch.dtype) -> None:
        self.kind = kind
        self.place = torch.linspace(0, 1, points).to(kind)
        self.reach = (0.1 * self.place.float().square()).to(kind)

    def offsets(self, seconds: float) -> torch.Tensor:
        time = torch.tensor(seconds, dtype=self.kind)  # culprit: tentacles-after-minutes
        phase = 1.7 * time - 3 * self.place  # culprit: tentacles-after-minutes
        return wider(self.reach * torch.sin(phase))


def swaying(kind: torch.dtype, start: float = 611.3, frames: int = 6) -> torch.Tensor:
    """How far the points of a tentacle are aside in six frames, after ten minutes. They jump."""
    jellyfish = Jellyfish(24, kind)
    return torch.stack([jellyfish.offsets(start + frame / 30) for frame in range(frames)])


def box_distance(place: torch.Tensor, centre: torch.Tensor, size: torch.Tensor, radius: float) -> torch.Tensor:
    """How far places are outside a box with round corners; less than nothing inside."""
    beyond = (place - centre).abs() - (size - radius)  # culprit: box-on-a-long-screen
    return beyond.clamp_min(0).float().square().sum(-1).sqrt().to(place.dtype) + beyond.amax(-1).clamp_max(0) - radius


def shaded(kind: torch.dtype, top: float = 2210.25) -> torch.Tensor:
    """How much of each pixel a button covers, which stands at the lower end of a long screen. Its edges are ragged."""
    rows, columns = torch.meshgrid(torch.arange(2200, 2226), torch.arange(400, 440), indexing="ij")
    pixels = torch.stack([columns, rows], -1) + 0.5
    centre, size = torch.tensor([420.2, top]).to(kind), torch.tensor([12.0, 7.0]).to(kind)
    distance = box_distance(pixels.to(kind), centre, size, 3.0)  # culprit: box-on-a-long-screen
    return wider((0.5 - distance).clamp(0, 1))


def pattern(places: torch.Tensor) -> torch.Tensor:
    """A pattern that makes each fragment take one of two branches."""
    turn = places[..., 0] * places[..., 1] * 0.0001  # culprit: pattern-of-fragments
    return turn - turn.floor()


def tested(kind: torch.dtype) -> torch.Tensor:
    """The brightness of fragments of a window of 800 by 600 by which a driver is tested."""
    places = torch.stack([torch.arange(4, 800, 31)[:, None].expand(26, 20), torch.arange(2, 600, 30)[None].expand(26, 20)], -1) + 0.5
    drawn = pattern(places.to(kind))
    return wider(torch.where(drawn >= 0.5, drawn, 1 - drawn))


class Batch:
    """Corners of triangles, which are moved and turned before they are drawn."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind
        self.turn = torch.eye(3)

    def translate(self, x: float, y: float) -> None:
        self.turn = self.turn @ torch.tensor([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])

    def rotate(self, angle: float) -> None:
        cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
        self.turn = self.turn @ torch.stack([torch.stack([cos, -sin, torch.zeros(())]), torch.stack([sin, cos, torch.zeros(())]),
                                             torch.tensor([0.0, 0.0, 1.0])])  # fmt: skip

    def place(self, corners: torch.Tensor) -> torch.Tensor:
        homogeneous = torch.cat([corners, torch.ones(*corners.shape[:-1], 1)], -1).to(self.kind)
        return (homogeneous @ self.turn.T.to(self.kind))[..., :2]  # culprit: figure-in-a-corner


def area(corners: torch.Tensor) -> torch.Tensor:
    one, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]  # culprit: figure-in-a-corner
    return (one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]) / 2  # culprit: figure-in-a-corner


def drawn(kind: torch.dtype) -> torch.Tensor:
    """The areas of the triangles of a small figure that is moved to the lower right corner of a telephone. They shimmer."""
    batch = Batch(kind)
    batch.translate(1030.0, 2380.0)
    batch.rotate(0.3)
    figure = 4 * normal(12, 1, 2) + 3 * normal(12, 3, 2, seed=1)
    return wider(area(batch.place(figure)))


def dashes(along: torch.Tensor, length: float, share: float) -> torch.Tensor:
    """How far places along a line are from the middle of their dash, and whether they are drawn."""
    turns = along / length  # culprit: dashes-of-a-long-road
    rest = turns - turns.floor()  # culprit: dashes-of-a-long-road
    return torch.where(rest < share, 1 - (2 * rest / share - 1).abs(), 0.0)


def road(kind: torch.dtype) -> torch.Tensor:
    """The paint of a road of fifty segments, of which each tells how far along it begins."""
    steps = 40 + 25 * uniform(50, 1)
    begin = steps.cumsum(0) - steps
    along = begin + steps * torch.linspace(0, 1, 9)
    return wider(dashes(along.to(kind), 6.0, 0.6))  # culprit: dashes-of-a-long-road


class Fog:
    """Hides houses that are far from the middle of a map."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end

    def share(self, places: torch.Tensor) -> torch.Tensor:
        distance = (places * places).sum(-1).sqrt()  # culprit: fog-over-houses
        return ((distance - self.start) / (self.end - self.start)).clamp(0, 1)

    def mix(self, colour: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        share = self.share(places)[..., None]
        return colour * (1 - share) + 0.9 * share


def houses(kind: torch.dtype) -> torch.Tensor:
    """The colours of houses up to six hundred metres away. All are gone."""
    colour, places = uniform(64, 3, seed=2), 600 * (uniform(64, 2, seed=3) - 0.5) + 150
    return wider(Fog(300.0, 900.0).mix(colour.to(kind), places.to(kind)))


BUGS = (
    Bug("tentacles-after-minutes", "arodic/jellyfish#1", ("amplified-rounding", "integer-rounding"), "aten._to_copy.default",
        lambda: swaying(HALF), lambda: swaying(SINGLE)),
    Bug("box-on-a-long-screen", "memononen/nanovg#102", ("amplified-rounding", "cancellation", "integer-rounding"), "aten._to_copy.default",
        lambda: shaded(HALF), lambda: shaded(SINGLE)),
    Bug("pattern-of-fragments", "glmark2/glmark2#132", ("overflow", "nan"), "aten.mul.Tensor", lambda: tested(HALF), lambda: tested(SINGLE)),
    Bug("figure-in-a-corner", "raysan5/raylib#5966", ("amplified-rounding", "cancellation"), "aten.mm.default",
        lambda: drawn(HALF), lambda: drawn(SINGLE)),
    Bug("dashes-of-a-long-road", "mapbox/mapbox-gl-js#2096", ("amplified-rounding", "cancellation", "integer-rounding"), "aten.div.Tensor",
        lambda: road(HALF), lambda: road(SINGLE)),
    Bug("fog-over-houses", "OSMBuildings/OSMBuildings#49", ("overflow",), "aten.mul.Tensor", lambda: houses(HALF), lambda: houses(SINGLE)),
)  # fmt: skip
