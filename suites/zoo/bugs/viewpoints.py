"""Viewpoints: turns of half a circle, spheres seen from afar, clusters on a sensor, snow on far ground, and a filter's curve."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
PRECISION = "32-true"


def turn(axis: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Matrices, (n, 3, 3), of turns about unit axes."""
    x, y, z = axis.unbind(-1)
    cross = torch.stack([torch.zeros_like(x), -z, y, z, torch.zeros_like(x), -x, -y, x, torch.zeros_like(x)], -1).view(-1, 3, 3)
    sine, versine = angle.sin()[:, None, None], (1 - angle.cos())[:, None, None]
    return torch.eye(3, dtype=axis.dtype) + sine * cross + versine * (cross @ cross)


def unskewed(matrix: torch.Tensor) -> torch.Tensor:
    return torch.stack([matrix[:, 2, 1] - matrix[:, 1, 2], matrix[:, 0, 2] - matrix[:, 2, 0], matrix[:, 1, 0] - matrix[:, 0, 1]], -1)


def rotation_vector(matrix: torch.Tensor, by_columns: bool) -> torch.Tensor:
    """Axis times angle of a turn."""
    trace = matrix.diagonal(dim1=1, dim2=2).sum(-1)
    skew = unskewed(matrix)  # culprit: turns-of-half-a-circle
    if not by_columns:
        angle = torch.acos(((trace - 1) / 2).clamp(-1, 1))  # culprit: turns-of-half-a-circle
        return skew * (angle / (2 * angle.sin() + 1e-12))[:, None]  # culprit: turns-of-half-a-circle
    angle = torch.atan2(skew.norm(dim=-1), trace - 1)
    columns = matrix + matrix.mT + (1 - trace)[:, None, None] * torch.eye(3, dtype=matrix.dtype)
    longest = columns.diagonal(dim1=1, dim2=2).argmax(-1)
    axis = columns[torch.arange(len(matrix)), longest]
    axis = axis / axis.norm(dim=-1, keepdim=True)
    return axis * torch.sign((axis * skew).sum(-1, keepdim=True)) * angle[:, None]


def poses(by_columns: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Turns of nearly half a circle, as a registration of point clouds meets them. The vectors are garbage."""
    axis = normal(12, 3).to(DOUBLE).abs() + 0.3
    matrix = turn(axis / axis.norm(dim=-1, keepdim=True), math.pi - 1.1e-4 * (1 + uniform(12, seed=1).to(DOUBLE)))
    return rotation_vector(matrix.to(dtype), by_columns)


def depth_on_a_sphere(origin: torch.Tensor, way: torch.Tensor, radius: float, from_the_middle: bool) -> torch.Tensor:
    """How far a ray goes to a sphere about the origin of the world."""
    towards = (origin * way).sum(-1)
    if from_the_middle:
        beside = (origin - towards[:, None] * way).square().sum(-1)
        return -towards - (radius**2 - beside).clamp_min(0).sqrt()
    constant = origin.square().sum(-1) - radius**2
    discriminant = towards.square() - constant  # culprit: sphere-from-afar
    return -towards - discriminant.clamp_min(0).sqrt()


def shaded_sphere(from_the_middle: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Light on a sphere that a camera sees from 2500 radii. Off by 9 %."""
    across = 0.9 * (2 * uniform(200, 2) - 1) / math.sqrt(2)
    origin = torch.cat([across, torch.full((200, 1), 2500.0)], -1).to(dtype)
    way = torch.tensor([0.0, 0.0, -1.0], dtype=dtype).expand(200, 3)
    hit = origin + depth_on_a_sphere(origin, way, 1.0, from_the_middle)[:, None] * way
    light = torch.tensor([0.6, 0.0, 0.8], dtype=dtype)
    return (hit / hit.norm(dim=-1, keepdim=True) * light).sum(-1).clamp_min(0)


def clustered(places: torch.Tensor, charge: torch.Tensor, cluster: torch.Tensor, clusters: int, centred: bool) -> torch.Tensor:
    """The variance of the place of each cluster of cells, by charge."""

    def total(of: torch.Tensor) -> torch.Tensor:
        return torch.zeros(clusters, dtype=places.dtype).index_add_(0, cluster, of)

    weight = total(charge)
    mean = total(charge * places) / weight
    if centred:
        return total(charge * (places - mean[cluster]).square()) / weight
    return (total(charge * places.square()) / weight - mean.square()).clamp_min(0)  # culprit: clusters-on-a-module


def measured_clusters(centred: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Errors of 40 measurements, in mm, of cells of 50 micrometres at half a metre from the middle of a module. Off by 230 %."""
    cluster = torch.arange(40).repeat_interleave(5)
    places = (480 + 0.7 * cluster + 0.05 * (torch.arange(200) % 5)).to(dtype)
    charge = (0.2 + uniform(200)).to(dtype)
    variance = clustered(places, charge, cluster, 40, centred)
    return (variance + 0.05**2 / 12).sqrt()


def ground_noise(place: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
    """Noise between nought and one at each cell of the ground, by a sine."""
    cell = torch.floor(place / 32).to(kept)
    swing = torch.sin(cell[:, 0] * 127.1 + cell[:, 1] * 311.7)  # culprit: snow-on-far-ground
    return (swing * 437.5853).frac().abs().to(SINGLE)  # culprit: snow-on-far-ground


def snow(kept: torch.dtype) -> torch.Tensor:
    """How white the ground is, a hundred and fifty thousand units away from the middle of the world. Off by 73 %."""
    place = 150_000 + 5_000 * (2 * uniform(120, 2) - 1)
    return torch.lerp(torch.tensor(0.2), torch.tensor(0.9), ground_noise(place, kept))


def high_pass(corner: float, rate: float) -> tuple[float, float]:
    """The angle of the corner, and how fast the filter forgets."""
    angle = 2 * math.pi * corner / rate
    return angle, math.sin(angle) / (2 * math.sqrt(0.5))


def curve(frequencies: torch.Tensor, corner: float, rate: float, by_half_angles: bool) -> torch.Tensor:
    """What an equaliser shows of its low cut: the gain at each frequency, squared."""
    angle, alpha = high_pass(corner, rate)
    w = 2 * math.pi * frequencies / rate
    half = torch.sin(w / 2).square()
    numerator = 16 * half.square() * math.cos(angle / 2) ** 4
    if by_half_angles:
        corner_half = math.sin(angle / 2) ** 2
        return numerator / (16 * (half - corner_half).square() + 16 * alpha**2 * half * (1 - half))
    real = (1 + alpha) * torch.cos(w) - 2 * math.cos(angle) + (1 - alpha) * torch.cos(w)  # culprit: curve-of-a-low-cut
    return numerator / (real.square() + (2 * alpha * torch.sin(w)).square())


def low_cut(by_half_angles: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """The curve of a cut at 12 Hz at a rate of 96 kHz, below its corner. Off by 6 %."""
    frequencies = torch.linspace(2, 25, 60, dtype=dtype)
    return curve(frequencies, 12.0, 96_000.0, by_half_angles)


BUGS = (
    Bug("turns-of-half-a-circle", "hmgoforth/PointNetLK#21", ("amplified-rounding", "cancellation"), "aten.acos.default",
        lambda: poses(False), lambda: poses(True), precision=PRECISION),
    Bug("sphere-from-afar", "mitsuba-renderer/mitsuba3#512", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: shaded_sphere(False), lambda: shaded_sphere(True), precision=PRECISION),
    Bug("clusters-on-a-module", "acts-project/traccc#90", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: measured_clusters(False), lambda: measured_clusters(True), precision=PRECISION),
    Bug("snow-on-far-ground", "matiaszanolli/ByroRedux#3980", ("amplified-rounding",), "aten.add.Tensor",
        lambda: snow(SINGLE), lambda: snow(DOUBLE), precision=PRECISION),
    Bug("curve-of-a-low-cut", "logicomacorp/WaveSabre#69", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: low_cut(False), lambda: low_cut(True), precision=PRECISION),
)  # fmt: skip
