"""Fits: circles on a big picture, curves of a high degree, columns of water, air at rest, bases that are nearly parallel."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
PRECISION = "32-true"


def fitted_circle(points: torch.Tensor, shifted: bool) -> torch.Tensor:
    """Middle and radius, (x, y, r), of the circle that is nearest to points, by least squares."""
    origin = points.mean(0) if shifted else torch.zeros(2, dtype=points.dtype)
    told = points - origin
    design = torch.cat([2 * told, torch.ones(len(told), 1, dtype=told.dtype)], 1)
    squares = told.square().sum(1)  # culprit: circle-on-a-big-picture
    moment, right = design.T @ design, design.T @ squares  # culprit: circle-on-a-big-picture
    x, y, rest = torch.linalg.solve(moment, right)  # culprit: circle-on-a-big-picture
    radius = (rest + x * x + y * y).clamp_min(0).sqrt()  # culprit: circle-on-a-big-picture
    return torch.stack([x + origin[0], y + origin[1], radius])


def arcs(shifted: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Radii of four arcs of about twelve pixels, at eight thousand pixels from the corner. They are garbage."""
    radii = []
    for seed in range(4):
        angle = 1.5 + 2.2 * uniform(60, seed=seed)
        ring = (12 + seed) * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * normal(60, 2, seed=seed)
        radii.append(fitted_circle((torch.tensor([8000.0, 6000.0]) + ring).to(dtype), shifted)[2])
    return torch.stack(radii)


def bernstein(degree: int, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that gives coefficients of powers for control points."""
    rows = [[(-1) ** (i - j) * math.comb(degree, i) * math.comb(i, j) if j <= i else 0 for j in range(degree + 1)] for i in range(degree + 1)]
    return torch.tensor(rows, dtype=dtype)


def control_points(points: torch.Tensor, degree: int, by_bernstein: bool) -> torch.Tensor:
    """Control points of the curve that fits points, at times between nought and one."""
    t = torch.linspace(0, 1, len(points), dtype=points.dtype)
    powers = torch.stack([t**k for k in range(degree + 1)], 1)
    matrix = bernstein(degree, points.dtype)
    if by_bernstein:
        return torch.linalg.lstsq(powers @ matrix, points).solution
    moments = torch.linalg.inv(powers.T @ powers)  # culprit: curve-of-a-high-degree
    return torch.linalg.inv(matrix) @ (moments @ (powers.T @ points))  # culprit: curve-of-a-high-degree


def signature(by_bernstein: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A pen's stroke of 40 points as a curve of the eighth degree. Off by 300 %."""
    t = torch.linspace(0, 1, 40, dtype=DOUBLE)
    stroke = torch.stack([3 * t + torch.sin(5 * t), torch.cos(4 * t)], 1)
    return control_points(stroke.to(dtype), 8, by_bernstein)


class Water:
    """A column of the sea: what its density says of the height of surfaces of equal pressure."""

    reference = 1035.0

    def __init__(self, layers: int, pressure: float, direct: bool) -> None:
        self.thickness, self.direct = pressure / layers, direct

    def volume_anomaly(self, density_anomaly: torch.Tensor) -> torch.Tensor:
        if self.direct:
            ratio = density_anomaly / self.reference
            return -ratio / (1 + ratio) / self.reference
        return 1 / (self.reference + density_anomaly) - 1 / self.reference  # culprit: volume-of-sea-water

    def geopotential_anomaly(self, density_anomaly: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(self.thickness * self.volume_anomaly(density_anomaly), -1)


def sea(direct: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """What drives currents between neighbouring columns of deep water, whose densities differ by a fifth of a gram. Off by 4 %."""
    depth = torch.linspace(0, 1, 20)
    anomaly = 0.02 * torch.sin(3 * depth) + 0.0002 * normal(8, 1)
    heights = Water(20, 4e7, direct).geopotential_anomaly(anomaly.to(dtype))
    return heights[1:] - heights[:-1]


class Atmosphere:
    """Air that is all but at rest: pressure by height, and what pushes air upwards."""

    gravity, gas, kappa = 9.81, 287.0, 0.2857

    def __init__(self, levels: int, dtype: torch.dtype, apart: bool) -> None:
        self.height = torch.linspace(0, 10_000, levels, dtype=dtype)
        self.theta = torch.full((levels,), 300.0, dtype=dtype)
        self.apart = apart

    def base(self) -> tuple[torch.Tensor, torch.Tensor]:
        exner = 1 - self.gravity * self.height / (self.gas / self.kappa * self.theta)
        pressure = 1e5 * exner ** (1 / self.kappa)
        return pressure, pressure / (self.gas * self.theta * exner)

    def push(self, bubble: torch.Tensor) -> torch.Tensor:
        """Upward acceleration between levels, for a bubble of warmth in kelvin."""
        pressure, density = self.base()
        lost = density * bubble / self.theta
        if self.apart:
            return self.gravity * (lost[1:] + lost[:-1]) / (density[1:] + density[:-1])
        fall = (pressure[1:] - pressure[:-1]) / (self.height[1:] - self.height[:-1])
        rest = -(density[1:] + density[:-1]) / 2 * self.gravity
        heavy = density - lost
        total = -fall - (heavy[1:] + heavy[:-1]) / 2 * self.gravity  # culprit: bubble-in-still-air
        return (total + fall - rest) / ((density[1:] + density[:-1]) / 2)  # culprit: bubble-in-still-air


def bubble(apart: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A bubble that is a thousandth of a kelvin too warm, among 50 levels. Off by 3 %."""
    atmosphere = Atmosphere(50, dtype, apart)
    warmth = 0.001 * torch.exp(-(((torch.linspace(0, 10, 50) - 3) / 1.2) ** 2))
    return atmosphere.push(warmth.to(dtype))


def gram_schmidt(vectors: torch.Tensor, again: bool) -> torch.Tensor:
    """Unit vectors at right angles, of vectors in columns."""
    basis: list[torch.Tensor] = []
    for vector in vectors.T:
        left = vector
        for _ in range(2 if again else 1):
            shares = [(direction @ left) * direction for direction in basis]
            for share in shares:
                left = left - share  # culprit: bases-nearly-parallel
        basis.append(left / left.norm())
    return torch.stack(basis, 1)


def snapshots_of_a_field(again: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How a basis of four snapshots that are much alike overlaps with itself. Off by 100 %."""
    x = torch.linspace(0, 1, 80)
    snapshots = torch.stack([torch.exp(-((x - 0.5 - 0.01 * k) ** 2) / 0.5) for k in range(4)], 1)
    basis = gram_schmidt(snapshots.to(dtype), again)
    return basis.T @ basis


BUGS = (
    Bug("circle-on-a-big-picture", "scikit-image/scikit-image#6703", ("local-drift", "cancellation", "amplified-rounding"),
        "aten._linalg_solve_ex.default or aten.mm.default", lambda: arcs(False), lambda: arcs(True), precision=PRECISION),
    Bug("curve-of-a-high-degree", "Pomax/bezierinfo#70", ("local-drift", "amplified-rounding"), "aten.linalg_inv_ex.default",
        lambda: signature(False), lambda: signature(True), precision=PRECISION),
    Bug("volume-of-sea-water", "MITgcm/MITgcm#827", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: sea(False), lambda: sea(True), precision=PRECISION),
    Bug("bubble-in-still-air", "CliMA/ClimateMachine.jl#81", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: bubble(False), lambda: bubble(True), precision=PRECISION),
    Bug("bases-nearly-parallel", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: snapshots_of_a_field(False), lambda: snapshots_of_a_field(True), precision=PRECISION),
)  # fmt: skip
