"""Single precision in space: cells of particles, bodies far away, twists of joints, tracks on the globe, energies of molecules."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
PRECISION = "32-true"


def cell_spread(phase: torch.Tensor, weight: torch.Tensor, cell: torch.Tensor, cells: int, centred: bool) -> torch.Tensor:
    """The weighted standard deviation of each cell's particles, in six coordinates of phase space."""
    inverse = 1 / torch.zeros(cells).index_add_(0, cell, weight)[:, None]
    mean = torch.zeros(cells, 6).index_add_(0, cell, weight[:, None] * phase) * inverse
    if centred:
        deviation = phase - mean[cell]
        variance = torch.zeros(cells, 6).index_add_(0, cell, weight[:, None] * deviation.square()) * inverse
    else:
        squares = torch.zeros(cells, 6).index_add_(0, cell, weight[:, None] * phase.square())  # culprit: spread-of-a-cell
        variance = (squares * inverse - mean.square()).clamp_min(0.0)  # culprit: spread-of-a-cell
    return variance.sqrt()


def upsampled(centred: bool) -> torch.Tensor:
    """How far daughters are put from 4000 macroparticles of a beam that is a centimetre down the line."""
    cells, number = 16, 4000
    cell = torch.arange(number) % cells
    spread = torch.tensor([2e-6, 2e-6, 8e-6, 1.5, 1.5, 3.0])
    offset = torch.tensor([0.0, 0.0, 1e-2, 0.0, 0.0, 2000.0])
    phase = offset + spread * normal(number, 6)
    sigma = cell_spread(phase, 1 + uniform(number, seed=1), cell, cells, centred)
    return sigma / spread


def simulated(from_start: bool) -> torch.Tensor:
    """How far eight boxes have gone in forty frames of twelve substeps, ten kilometres from the origin."""
    position = 10_000 + 40 * uniform(8, 3)
    start, moved = position.clone(), torch.zeros(8, 3)
    velocity, step = 0.5 * normal(8, 3, seed=1), 1 / 60 / 12
    for _ in range(40 * 12):
        velocity = velocity * 0.9998
        if from_start:
            moved = moved + velocity * step
        else:
            position = position + velocity * step  # culprit: far-from-the-origin
    return moved if from_start else position - start  # culprit: far-from-the-origin


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The Hamilton product of quaternions x, y, z, w."""
    v, w, u, s = one[..., :3], one[..., 3:], other[..., :3], other[..., 3:]
    return torch.cat([w * u + s * v + torch.linalg.cross(v, u), w * s - (v * u).sum(-1, keepdim=True)], -1)


def twist_angle(axis: torch.Tensor, quaternion: torch.Tensor, by_tangent: bool) -> torch.Tensor:
    """The angle of the part of a rotation that is about that axis."""
    along = (quaternion[..., :3] * axis).sum(-1, keepdim=True)
    twist = torch.cat([along * axis, quaternion[..., 3:]], -1)
    if by_tangent:
        return 2 * torch.atan2(along[..., 0].abs(), twist[..., 3].abs())
    twist = twist / twist.square().sum(-1, keepdim=True).sqrt()  # culprit: twist-of-a-joint
    return 2 * torch.acos(twist[..., 3].clamp(-1, 1))  # culprit: twist-of-a-joint


def joints(by_tangent: bool) -> torch.Tensor:
    """Angles of 200 joints that move slowly, from the rotations of the bodies that they join."""
    axis = torch.nn.functional.normalize(normal(200, 3), dim=-1)
    parent = torch.nn.functional.normalize(normal(200, 4, seed=1), dim=-1)
    half = (2e-4 + 2e-3 * uniform(200, 1, seed=2)) / 2
    child = product(parent, torch.cat([axis * half.sin(), half.cos()], -1))
    conjugate = parent * torch.tensor([-1.0, -1.0, -1.0, 1.0])
    return twist_angle(axis, product(conjugate, child), by_tangent)


class Haversine:
    """The distance along a great circle of points in degrees; the radius says in which format."""

    def __init__(self, radius: float, dtype: torch.dtype) -> None:
        self.radius, self.dtype = torch.tensor(radius, dtype=dtype), dtype

    def __call__(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        one, other = torch.deg2rad(one.to(self.dtype)), torch.deg2rad(other.to(self.dtype))  # culprit: steps-of-a-track
        difference = other - one  # culprit: steps-of-a-track
        a = (difference[:, 1] / 2).sin().square() + one[:, 1].cos() * other[:, 1].cos() * (difference[:, 0] / 2).sin().square()
        return 2 * self.radius * torch.asin(a.clamp(0, 1).sqrt())


def track(dtype: torch.dtype) -> torch.Tensor:
    """The speed of a walker in metres a second, from a point each second in degrees with seven places."""
    heading = torch.cumsum(0.1 * normal(400, seed=1).double(), 0)
    metres = torch.cumsum(1.4 * torch.stack([heading.cos(), heading.sin()], -1), 0)
    degrees = torch.tensor([116.397, 39.909], dtype=DOUBLE) + metres / torch.tensor([111_320 * math.cos(math.radians(39.909)), 110_540.0])
    degrees = (degrees * 1e7).round() / 1e7
    return Haversine(6_371_000.0, dtype)(degrees[:-1], degrees[1:]).float()


def total_energy(species: torch.Tensor, node_energy: torch.Tensor, batch: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Energies of isolated atoms and of their interaction, added up over each structure."""
    isolated = torch.tensor([-13.663181292231226, -1029.2809654211628, -1484.1187695035828, -2042.0330099956639], dtype=DOUBLE)
    nodes = isolated.to(dtype)[species] + node_energy.to(dtype)  # culprit: energies-with-isolated-atoms
    return torch.zeros(int(batch.max()) + 1, dtype=dtype).index_add_(0, batch, nodes)  # culprit: energies-with-isolated-atoms


def conformers(dtype: torch.dtype) -> torch.Tensor:
    """Energies of 24 conformers of a molecule of 90 atoms, relative to the first, in electronvolts."""
    species = torch.tensor([1, 1, 0, 0, 2, 3, 1, 0, 0]).repeat(10)
    node_energy = -4 + normal(90) + 0.01 * normal(24, 90, seed=1)
    batch = torch.arange(24).repeat_interleave(90)
    energies = total_energy(species.repeat(24), node_energy.flatten(), batch, dtype)
    return (energies - energies[0]).float()  # culprit: energies-with-isolated-atoms


BUGS = (
    Bug("spread-of-a-cell", "berceanu/openPMD-resampler#3", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: upsampled(False),
        lambda: upsampled(True), precision=PRECISION),
    Bug("far-from-the-origin", "avianphysics/avian#84", ("cancellation", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: simulated(False), lambda: simulated(True), precision=PRECISION),
    Bug("twist-of-a-joint", "NVIDIA/warp#1631", ("amplified-rounding", "cancellation"), "aten.div.Tensor", lambda: joints(False),
        lambda: joints(True), precision=PRECISION),
    Bug("steps-of-a-track", "JuliaStats/Distances.jl#216", ("cancellation",), "aten.sub.Tensor", lambda: track(SINGLE), lambda: track(DOUBLE),
        precision=PRECISION),
    Bug("energies-with-isolated-atoms", "ACEsuit/mace#211", ("amplified-rounding", "cancellation"), "aten.index_add_.default",
        lambda: conformers(SINGLE), lambda: conformers(DOUBLE), precision=PRECISION),
)  # fmt: skip
