"""Where things are and how they are turned: clouds of points, maps, attitudes, distances on a globe."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

HALF, WIDE, DOUBLE = torch.float16, torch.float32, torch.float64


class PointCloudMessage:
    """What a viewer's server sends to a browser."""

    def __init__(self, points: torch.Tensor, dtype: torch.dtype) -> None:
        self.points = points.to(dtype)  # culprit: points-far-off


def drawn(dtype: torch.dtype) -> torch.Tensor:
    """Where points of a car that stands 300 m from the map's origin come to lie in the picture of a camera beside it."""
    cloud = torch.tensor([300.0, 210.0, 1.0]) + torch.tensor([2.2, 0.9, 0.7]) * (2 * uniform(400, 3) - 1)
    message = PointCloudMessage(cloud, dtype)
    camera = torch.tensor([300.0, 203.0, 1.5])
    seen = message.points.float() - camera  # culprit: points-far-off
    return seen[:, [0, 2]] / seen[:, 1:2]


def aligned(dtype: torch.dtype) -> torch.Tensor:
    """The distances of neighbouring points of a wall, after the model was moved to where it stands in its zone."""
    wall = torch.stack([0.02 * torch.arange(400.0), 0.001 * normal(400), 0.01 * normal(400, seed=1)], 1).double()
    turned = torch.tensor([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]], dtype=DOUBLE)
    georeferenced = 1.02 * wall @ turned.T + torch.tensor([482_317.4, 5_455_201.9, 310.2], dtype=DOUBLE)
    exported = georeferenced.to(dtype)  # culprit: striped-points
    return (exported[1:] - exported[:-1]).norm(dim=-1)  # culprit: striped-points


def tilt(attitude: torch.Tensor, clamped: bool) -> torch.Tensor:
    """How far a craft's own vertical leans from the world's, of normalised quaternions."""
    w, x, y, z = (attitude / attitude.norm(dim=-1, keepdim=True)).unbind(-1)
    upright = w * w - x * x - y * y + z * z  # culprit: upright-craft
    if clamped:
        return torch.atan2(2 * ((x * z + w * y) ** 2 + (y * z - w * x) ** 2).sqrt(), upright)
    return torch.acos(upright)  # culprit: upright-craft


def hovering(clamped: bool) -> torch.Tensor:
    """The tilts of a craft that turns about its vertical and hardly leans."""
    heading = 6.28 * uniform(200)
    lean = 2e-5 * normal(2, 200, seed=1)
    return tilt(torch.stack([(heading / 2).cos(), *lean, (heading / 2).sin()], -1), clamped)


def law_of_cosines(begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    (lon, lat), (other_lon, other_lat) = begin.deg2rad(), end.deg2rad()
    inner = lat.sin() * other_lat.sin() + lat.cos() * other_lat.cos() * (other_lon - lon).cos()  # culprit: city-distances
    return 6_371_000 * inner.clamp(-1, 1).acos()  # culprit: city-distances


def haversine(begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    (lon, lat), (other_lon, other_lat) = begin.deg2rad(), end.deg2rad()
    half = ((other_lat - lat) / 2).sin() ** 2 + lat.cos() * other_lat.cos() * ((other_lon - lon) / 2).sin() ** 2
    return 2 * 6_371_000 * half.sqrt().asin()


def city() -> tuple[torch.Tensor, torch.Tensor]:
    """Where trips through a city begin and end, in degrees."""
    begin = torch.tensor([[-77.036585], [38.897448]]) + 0.02 * normal(2, 64)
    return begin, begin + 0.02 * normal(2, 64, seed=1)


def composed(later: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
    """One turn after another, as Hamilton's product of unit quaternions."""
    a, b, c, d = later.unbind(-1)
    e, f, g, h = earlier.unbind(-1)
    w, x = a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g  # culprit: many-turns
    y, z = a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e  # culprit: many-turns
    return torch.stack([w, x, y, z], -1)  # culprit: many-turns


def turned(dtype: torch.dtype) -> torch.Tensor:
    """Where the forward axis of sixteen gyroscopes points after 150 small turns."""
    turns = torch.cat([torch.ones(150, 16, 1), 0.03 * normal(150, 16, 3)], -1)
    turns = turns / turns.norm(dim=-1, keepdim=True)
    attitude = torch.tensor([1.0, 0, 0, 0], dtype=dtype).expand(16, 4)
    for turn in turns.to(dtype):
        attitude = composed(turn, attitude)
    w, x, y, z = attitude.float().unbind(-1)
    return torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], -1)


BUGS = (
    Bug("points-far-off", "viser-project/viser#427", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: drawn(HALF),
        lambda: drawn(WIDE)),
    Bug("striped-points", "colmap/colmap#1088", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: aligned(WIDE),
        lambda: aligned(DOUBLE), precision="32-true"),
    Bug("upright-craft", "PX4/PX4-Autopilot#17648", ("amplified-rounding", "nan", "overflow"), "aten.acos.default", lambda: hovering(False),
        lambda: hovering(True), precision="32-true"),
    Bug("city-distances", "georust/geo#100", ("amplified-rounding", "cancellation"), "aten.add.Tensor", lambda: law_of_cosines(*city()),
        lambda: haversine(*city()), precision="32-true"),
    Bug("many-turns", "dimforge/nalgebra#1377", ("accumulated-drift", "absorption"), "aten.sub.Tensor", lambda: turned(HALF),
        lambda: turned(WIDE)),
)  # fmt: skip
