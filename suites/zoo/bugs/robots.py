"""Robots and worlds in float32: clocks of simulators, maps of laser points, grippers that point down, neurons that rest."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


class MechanicalWorld:
    """Rigid bodies under gravity, and a lift whose height is a function of the world's time."""

    def __init__(self, time: float, dtype: torch.dtype) -> None:
        self.dt = 1 / 60
        self.time = torch.tensor(time, dtype=dtype)
        self.position, self.velocity = torch.zeros(3), torch.tensor([0.5, 0.0, 4.0])

    def step(self) -> None:
        self.velocity = self.velocity + self.dt * torch.tensor([0.0, 0.0, -9.81])
        self.position = self.position + self.dt * self.velocity
        self.time = self.time + self.dt  # culprit: standing-world

    def lift(self) -> torch.Tensor:
        return (1.5 + 1.5 * torch.sin(2 * math.pi / 8 * self.time)).float()


def six_days_later(dtype: torch.dtype) -> torch.Tensor:
    """Two seconds of a simulator that has run for six days: where the lift is, and a body that was thrown."""
    world, seen = MechanicalWorld(524_288.0, dtype), []
    for _ in range(120):
        world.step()
        seen.append(torch.cat([world.lift()[None], world.position]))
    return torch.stack(seen)


def voxel_grid_filter(points: torch.Tensor, leaf: float, about_the_corner: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The centroid of the points in each voxel, and the smallest corner of all voxels."""
    corner = torch.floor(points.amin(0) / leaf) * leaf
    cell = torch.floor((points - corner) / leaf).long()
    number = cell[:, 0] * 64 + cell[:, 1]
    _, voxel, count = number.unique(return_inverse=True, return_counts=True)
    if about_the_corner:
        sums = torch.zeros(len(count), 3).index_add_(0, voxel, points - corner)
        return sums / count[:, None], corner
    sums = torch.zeros(len(count), 3).index_add_(0, voxel, points)  # culprit: voxel-centroids
    return sums / count[:, None] - corner, corner  # culprit: voxel-centroids


def downsampled(about_the_corner: bool) -> torch.Tensor:
    """A road of four metres by four at a point each five centimetres, in a map whose origin is two hundred kilometres away."""
    across, along = torch.meshgrid(torch.arange(80) * 0.05, torch.arange(80) * 0.05, indexing="ij")
    road = torch.stack([across.flatten(), along.flatten(), 0.02 * normal(6400)], 1)
    points = (road.double() + torch.tensor([206_494.75, 31_208.5, 61.0]).double()).float()
    centroids, _ = voxel_grid_filter(points, 1.0, about_the_corner)
    return centroids


def quaternion_to_matrix(quaternions: torch.Tensor) -> torch.Tensor:
    r, i, j, k = torch.unbind(quaternions, -1)
    two_s = 2.0 / (quaternions * quaternions).sum(-1)
    rows = (1 - two_s * (j * j + k * k), two_s * (i * j - k * r), two_s * (i * k + j * r),
            two_s * (i * j + k * r), 1 - two_s * (i * i + k * k), two_s * (j * k - i * r),
            two_s * (i * k - j * r), two_s * (j * k + i * r), 1 - two_s * (i * i + j * j))  # fmt: skip  # culprit: gripper-down
    return torch.stack(rows, -1).reshape((*quaternions.shape[:-1], 3, 3))


def pitch_of(matrix: torch.Tensor, clamped: bool) -> torch.Tensor:
    """The second of the three angles about Z, Y and X."""
    sine = -matrix[..., 2, 0]
    if clamped:
        return torch.asin(torch.clamp(sine, -1.0, 1.0))
    return torch.asin(sine)  # culprit: gripper-down


def pointing_down(clamped: bool) -> torch.Tensor:
    """How steep a gripper stands over a table in 300 environments; it points down, to a hundredth of a degree."""
    yaw, off, roll = 2 * math.pi * uniform(300).double(), 1.5e-4 * (0.1 + uniform(300, seed=1).double()), 0.3 * normal(300, seed=2).double()
    pitch = math.pi / 2 - off
    (cy, sy), (cp, sp), (cr, sr) = ((torch.cos(angle / 2), torch.sin(angle / 2)) for angle in (yaw, pitch, roll))
    quaternions = torch.stack([cr * cp * cy + sr * sp * sy, sr * cp * cy - cr * sp * sy,
                               cr * sp * cy + sr * cp * sy, cr * cp * sy - sr * sp * cy], -1).float()  # fmt: skip
    return pitch_of(quaternion_to_matrix(quaternions), clamped)


class PoissonNeurons:
    """Neurons that fire by chance, and not for 1.35 milliseconds after they have fired."""

    def __init__(self, number: int, in_steps: bool) -> None:
        self.in_steps, self.dt, self.rest = in_steps, 0.1, 1.35
        self.last = torch.full((number,), -(2**40)) if in_steps else torch.full((number,), -1e9)

    def update(self, step: int, chance: torch.Tensor) -> torch.Tensor:
        if self.in_steps:
            spikes = chance & ((step - self.last) * self.dt > self.rest)
            self.last = torch.where(spikes, step, self.last)
            return spikes
        time = torch.tensor(step * self.dt, dtype=WIDE)  # culprit: resting-neurons
        spikes = chance & (time - self.last > self.rest)  # culprit: resting-neurons
        self.last = torch.where(spikes, time, self.last)
        return spikes


def fired(in_steps: bool) -> torch.Tensor:
    """The rate of each of 64 neurons over 25 milliseconds, an hour and a half after a long simulation began."""
    neurons, counts = PoissonNeurons(64, in_steps), torch.zeros(64)
    for turn in range(250):
        counts += neurons.update(54_000_000 + turn, uniform(64, seed=turn) < 0.3)
    return counts / 0.025


BUGS = (
    Bug("standing-world", "dimforge/nphysics#252", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: six_days_later(WIDE), lambda: six_days_later(DOUBLE), precision="32-true"),
    Bug("voxel-centroids", "autowarefoundation/autoware#1729", ("cancellation", "accumulated-drift", "absorption", "amplified-rounding"),
        "aten.sub.Tensor", lambda: downsampled(False), lambda: downsampled(True), precision="32-true"),
    Bug("gripper-down", "mani-skill/ManiSkill#1090", ("amplified-rounding", "cancellation", "nan"), "aten.asin.default",
        lambda: pointing_down(False), lambda: pointing_down(True), precision="32-true"),
    Bug("resting-neurons", "genn-team/genn#183", ("cancellation", "decision-flip", "amplified-rounding", "integer-rounding"), "aten.sub.Tensor",
        lambda: fired(False), lambda: fired(True), precision="32-true"),
)  # fmt: skip
