"""Physics and shapes: the energy of slow particles, the middle of a field far away, a fluid at rest, a chain of joints."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def energy(dtype: torch.dtype, by_squares: bool, speed: float = 4e-4) -> torch.Tensor:
    """Kinetic energies of ions, whose momenta are those shares of the speed of light. Off by 8 %."""
    momenta = speed * normal(40, 3).to(dtype)
    squares = momenta.square().sum(1)
    gamma = torch.sqrt(1 + squares)
    return squares / (gamma + 1) if by_squares else gamma - 1  # culprit: energy-of-slow-ions


def middle(dtype: torch.dtype, about_a_corner: bool, far: float = 8000.0) -> torch.Tensor:
    """Where the middle of a field of ten metres lies, seen from its first corner, by sums over its sides. Off by 1300 %."""
    corner = torch.tensor([far, 1.25 * far], dtype=dtype)
    ring = corner + torch.tensor([[0, 0], [10, 1], [11, 9], [4, 12], [-1, 8], [0, 0]], dtype=dtype)
    origin = ring[0] if about_a_corner else torch.zeros_like(corner)
    here, there = ring[:-1] - origin, ring[1:] - origin
    cross = here[:, 0] * there[:, 1] - there[:, 0] * here[:, 1]  # culprit: middle-of-a-far-field
    area = cross.sum() / 2  # culprit: middle-of-a-far-field
    return ((here + there) * cross[:, None]).sum(0) / (6 * area) + (origin - corner)  # culprit: middle-of-a-far-field


WEIGHTS = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, dtype=torch.float64)
WAYS = torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]])


class Fluid:
    """A lattice of populations, which are kept in `kept` and moved on in float32; all of them, or what they are off those at rest."""

    def __init__(self, velocity: torch.Tensor, kept: torch.dtype, off_rest: bool) -> None:
        self.kept, self.rest = kept, WEIGHTS.to(velocity.dtype)[:, None, None] * float(off_rest)
        self.weights, self.ways = WEIGHTS.to(velocity.dtype)[:, None, None], WAYS.to(velocity.dtype)
        self.f = (self.at_rest(torch.ones_like(velocity[0]), velocity) - self.rest).to(kept)

    def at_rest(self, density: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        along = torch.einsum("qd,dxy->qxy", self.ways, velocity)
        return self.weights * density * (1 + 3 * along + 4.5 * along.square() - 1.5 * velocity.square().sum(0))

    def moments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        f = wider(self.f) + self.rest
        density = f.sum(0)
        return f, density, torch.einsum("qd,qxy->dxy", self.ways, f) / density

    def step(self) -> None:
        f, density, velocity = self.moments()
        f = f + (self.at_rest(density, velocity) - f) / 0.8
        moved = [torch.roll(f[place], (int(x), int(y)), (0, 1)) for place, (x, y) in enumerate(WAYS)]
        self.f = (torch.stack(moved) - self.rest).to(self.kept)  # culprit: fluid-that-hardly-flows


def flow(kept: torch.dtype, off_rest: bool, speed: float = 2e-3, steps: int = 60) -> torch.Tensor:
    """A shear wave in a box of sixteen cells after sixty steps, of populations that are kept in half. Off by 150 %."""
    place = torch.arange(16, dtype=torch.promote_types(kept, WIDE))
    velocity = torch.stack([torch.zeros(16, 16), speed * torch.sin(2 * torch.pi * place / 16)[:, None].expand(16, 16)])
    fluid = Fluid(velocity.to(place.dtype), kept, off_rest)
    for _ in range(steps):
        fluid.step()
    return fluid.moments()[2][1]


class Chain(torch.nn.Module):
    """Where each body of a chain is: the turns of all joints before it are multiplied."""

    def __init__(self, single: bool) -> None:
        super().__init__()
        self.single = single

    def forward(self, angles: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros_like(angles)
        turns = torch.stack([angles.cos(), -angles.sin(), zero, angles.sin(), angles.cos(), zero, zero, zero, zero + 1], -1)
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.single, dtype=LOW):
            pose, places = torch.eye(3, dtype=angles.dtype), [torch.zeros(3, dtype=angles.dtype)]
            for turn in turns.view(-1, 3, 3):
                pose = pose @ turn  # culprit: chain-of-joints-within-autocast
                places.append(places[-1] + wider(pose[:, 0]))
        return torch.stack(places)


def bodies(dtype: torch.dtype, single: bool, joints: int = 240, bend: float = 0.04) -> torch.Tensor:
    """Where 240 bodies of a chain are, each turned by some hundredths; autocast multiplies turns in bfloat16. Off by 12 %."""
    angles = bend * (0.5 + uniform(joints).to(WIDE if dtype is LOW else dtype))
    with torch.autocast("cpu", dtype=LOW, enabled=dtype is LOW):
        return Chain(single)(angles)


BUGS = (
    Bug("energy-of-slow-ions", "BLAST-WarpX/warpx#2397", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: energy(WIDE, False),
        lambda: energy(WIDE, True), precision="32-true"),
    Bug("middle-of-a-far-field", "cleder/pygeoif#380", ("integer-rounding", "cancellation", "amplified-rounding"), "aten.mul.Tensor",
        lambda: middle(WIDE, False), lambda: middle(WIDE, True), precision="32-true"),
    Bug("fluid-that-hardly-flows", "haimingz/vivsim#46", ("absorption", "accumulated-drift", "amplified-rounding"), "aten._to_copy.default",
        lambda: flow(HALF, False), lambda: flow(HALF, True)),
    Bug("chain-of-joints-within-autocast", "simbody/simbody#7", ("accumulated-drift", "amplified-rounding"), "aten.mm.default",
        lambda: bodies(LOW, False), lambda: bodies(LOW, True), module="Chain"),
)  # fmt: skip
