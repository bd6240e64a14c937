"""Voyages: drives over the globe, cameras that are far away, panels far from the origin, surveys, and filters that say where a craft is."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Track:
    """Places of a car, as they are read from a store."""

    def __init__(self, degrees: torch.Tensor, kind: torch.dtype) -> None:
        self.degrees = degrees.to(kind)  # culprit: length-of-a-drive

    def lengths(self) -> torch.Tensor:
        """Metres from each place to the next, by the haversine."""
        angle = self.degrees * (math.pi / 180)  # culprit: length-of-a-drive
        apart = angle.diff(dim=0)  # culprit: length-of-a-drive
        half = (apart / 2).sin().square()
        share = half[:, 0] + angle[:-1, 0].cos() * angle[1:, 0].cos() * half[:, 1]
        return 2 * 6_371_000 * share.clamp(0, 1).sqrt().asin()


def driven(kind: torch.dtype) -> torch.Tensor:
    """Kilometres in an hour at each second of a drive through a town. They go up and down."""
    steps = torch.stack([2e-5 + 2e-6 * normal(60), 3e-5 + 2e-6 * normal(60, seed=1)], -1).double()
    degrees = torch.tensor([51.9616, 7.6281], dtype=DOUBLE) + steps.cumsum(0)
    return 3.6 * Track(degrees, kind).lengths()


class Camera:
    """A camera that looks at the origin from far away."""

    def __init__(self, place: torch.Tensor, kind: torch.dtype, view: float = 0.02) -> None:
        self.view, self.place = view, place.to(kind)
        forward = functional.normalize(-place, dim=0)
        right = functional.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 0.0, 1.0], dtype=DOUBLE)), dim=0)
        self.world = torch.stack([right, torch.linalg.cross(right, forward), forward], 1).to(kind)

    def rays(self, pixels: torch.Tensor) -> torch.Tensor:
        """The direction of each pixel's ray: from the camera to a point in front of it."""
        near = torch.cat([self.view * pixels, torch.ones(*pixels.shape[:-1], 1, dtype=pixels.dtype)], -1)
        point = self.place + near @ self.world.T  # culprit: rays-of-a-far-camera
        return functional.normalize(point - self.place, dim=-1)  # culprit: rays-of-a-far-camera


def sky(kind: torch.dtype) -> torch.Tensor:
    """A sky with stripes behind a scene, seen from thirty kilometres away. It is made of blocks."""
    camera = Camera(torch.tensor([25_000.0, 14_000.0, 9_000.0], dtype=DOUBLE), kind)
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    rays = camera.rays(torch.stack([columns, rows], -1).to(kind))
    return torch.sin(400 * rays[..., 2])


class Panel:
    """A rectangle in space that shades what is behind it."""

    def __init__(self, corner: torch.Tensor, one: torch.Tensor, other: torch.Tensor, kind: torch.dtype) -> None:
        self.corner, self.one, self.other = corner.to(kind), one.to(kind), other.to(kind)
        self.normal = torch.linalg.cross(self.one, self.other)
        self.offset = (self.normal * self.corner).sum()  # culprit: shade-far-from-the-origin

    def shades(self, places: torch.Tensor, ray: torch.Tensor) -> torch.Tensor:
        along = (self.offset - (places * self.normal).sum(-1)) / (self.normal * ray).sum()  # culprit: shade-far-from-the-origin
        met = places + along[..., None] * ray - self.corner
        u, v = (met * self.one).sum(-1) / self.one.square().sum(), (met * self.other).sum(-1) / self.other.square().sum()
        return (along > 0) & (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)


def irradiance(kind: torch.dtype, far: tuple[float, float] = (4_500_000.3, 6_000_000.3)) -> torch.Tensor:
    """The light at places on the ground under a panel of ten metres, in a country's coordinates. Some of it comes through the panel."""
    origin = torch.tensor([*far, 0.0], dtype=DOUBLE)
    panel = Panel(origin + torch.tensor([0.0, 0.0, 6.0], dtype=DOUBLE), torch.tensor([10.0, 0.0, 1.0], dtype=DOUBLE),
                  torch.tensor([0.0, 10.0, 2.0], dtype=DOUBLE), kind)  # fmt: skip
    places = origin + torch.cat([12 * uniform(300, 2, seed=8), torch.zeros(300, 1)], -1).double()
    ray = functional.normalize(torch.tensor([0.3, 0.2, 0.9], dtype=DOUBLE), dim=0).to(kind)
    shaded = panel.shades(places.to(kind), ray)
    return torch.where(shaded, 30.0, 800.0).to(kind).view(30, 10).mean(-1)


class Filter:
    """Says where a craft is and how fast it goes, by what it is told of its place and of landmarks."""

    def __init__(self, kind: torch.dtype) -> None:
        self.state = torch.zeros(4, dtype=kind)
        self.spread = torch.diag(torch.tensor([100.0, 100.0, 25.0, 25.0])).to(kind)

    def move(self, seconds: float) -> None:
        step = torch.eye(4, dtype=self.state.dtype)
        step[0, 2] = step[1, 3] = seconds
        self.state = step @ self.state
        self.spread = step @ self.spread @ step.T

    def see(self, rows: torch.Tensor, told: torch.Tensor, noise: float) -> None:
        across = rows @ self.spread @ rows.T + noise * torch.eye(len(rows), dtype=rows.dtype)
        gain = torch.linalg.solve(across, rows @ self.spread).T  # culprit: spread-of-a-craft
        self.state = self.state + gain @ (told - rows @ self.state)
        self.spread = self.spread - gain @ rows @ self.spread  # culprit: spread-of-a-craft


def spread(kind: torch.dtype, turns: int = 5) -> torch.Tensor:
    """How sure a filter is of a craft's state after five looks at three landmarks, which are exact to some millimetres. Far too sure."""
    craft, rows = Filter(kind), torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.7, 0.7, 0.0, 0.0]], dtype=kind)
    for turn in range(turns):
        craft.move(0.05)
        place = torch.tensor([1.0, 2.0], dtype=kind) * 0.05 * (turn + 1)
        craft.see(rows, rows[:, :2] @ place + 1e-3 * normal(3, seed=turn).to(kind), 1e-5)
    return craft.spread.diagonal().sqrt()


class Cubature:
    """Points that stand for a normal distribution, two for each dimension."""

    def __init__(self, mean: torch.Tensor, covariance: torch.Tensor) -> None:
        self.mean, self.covariance = mean, covariance

    def points(self) -> torch.Tensor:
        root = torch.linalg.cholesky(self.covariance)  # culprit: points-of-a-tracker
        return self.mean + math.sqrt(len(self.mean)) * torch.cat([root.T, -root.T])


def tracked(kind: torch.dtype) -> torch.Tensor:
    """The mean range and bearing of an aircraft, whose place was told in one direction to a centimetre and in the other to some kilometres."""
    turn = torch.linalg.qr(normal(4, 4, seed=9).double()).Q
    covariance = (turn @ torch.diag(torch.tensor([4e6, 1e-4, 90.0, 1e-4], dtype=DOUBLE)) @ turn.T).to(kind)  # culprit: points-of-a-tracker
    points = Cubature(torch.tensor([8000.0, 3000.0, 60.0, -20.0], dtype=kind), covariance).points()
    return torch.stack([points[:, :2].norm(dim=-1).mean(), torch.atan2(points[:, 1], points[:, 0]).mean()])


class Mercator:
    """Places in pixels of a map of the world."""

    def __init__(self, zoom: float) -> None:
        self.pixels = 512 * 2.0**zoom

    def project(self, degrees: torch.Tensor) -> torch.Tensor:
        x = 0.5 + degrees[..., 0] / 360
        y = 0.5 - torch.log(torch.tan(math.pi / 4 + degrees[..., 1] * math.pi / 360)) / (2 * math.pi)
        return torch.stack([x, y], -1) * self.pixels  # culprit: pictures-of-a-survey


def survey(kind: torch.dtype, zoom: float = 19.0) -> torch.Tensor:
    """Where the corners of pictures of a survey are on a screen, as pixels from its middle. They shake."""
    corners = torch.tensor([-105.2705, 40.0150], dtype=DOUBLE) + 1e-4 * normal(40, 2, seed=10).double()
    chart = Mercator(zoom)
    middle = chart.project(torch.tensor([-105.2705, 40.0150], dtype=DOUBLE).to(kind))
    return chart.project(corners.to(kind)) - middle  # culprit: pictures-of-a-survey


BUGS = (
    Bug("length-of-a-drive", "enviroCar/enviroCar-app#174", ("amplified-rounding", "cancellation"), "aten.mul.Tensor",
        lambda: driven(SINGLE), lambda: driven(DOUBLE), precision="32-true"),
    Bug("rays-of-a-far-camera", "gkjohnson/three-gpu-pathtracer#178", ("amplified-rounding", "cancellation", "absorption"), "aten.add.Tensor",
        lambda: sky(SINGLE), lambda: sky(DOUBLE), precision="32-true"),
    Bug("shade-far-from-the-origin", "nljones/Accelerad#4", ("cancellation", "amplified-rounding", "decision-flip"), "aten.sub.Tensor",
        lambda: irradiance(SINGLE), lambda: irradiance(DOUBLE), precision="32-true"),
    Bug("spread-of-a-craft", "rpng/open_vins#162", ("local-drift", "cancellation", "nan", "amplified-rounding"), "aten._linalg_solve_ex.default",
        lambda: spread(SINGLE), lambda: spread(DOUBLE), precision="32-true"),
    Bug("points-of-a-tracker", "dstl/Stone-Soup#1234", ("amplified-rounding", "cancellation", "nan"), "aten._to_copy.default",
        lambda: tracked(SINGLE), lambda: tracked(DOUBLE), precision="32-true", raises=torch.linalg.LinAlgError),
    Bug("pictures-of-a-survey", "developmentseed/deck.gl-raster#512", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: survey(SINGLE), lambda: survey(DOUBLE), precision="32-true"),
)  # fmt: skip
