"""Fjords: stars in a large box, heights above a sphere, slopes of networks, windows of scans, conformers, regions of an atlas, confounds."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class Stars:
    """Stars in a box, which a leapfrog moves; on the finest grids a step is very short."""

    def __init__(self, places: torch.Tensor, speeds: torch.Tensor, local: bool) -> None:
        self.corner = places.clone() if local else torch.zeros_like(places)
        self.places = places - self.corner
        self.start, self.speeds = self.places.clone(), speeds.clone()

    def pull(self, centre: float = 50.0) -> torch.Tensor:
        away = self.places + (self.corner - centre)
        return -away / (away.square().sum(1, keepdim=True) + 4.0) ** 1.5

    def step(self, dt: float) -> None:
        self.speeds = self.speeds + 0.5 * dt * self.pull()
        self.places = self.places + dt * self.speeds  # culprit: stars-that-should-move
        self.speeds = self.speeds + 0.5 * dt * self.pull()


def drifted(local: bool) -> torch.Tensor:
    """How far forty stars of a box of a hundred have come after 48 short steps, in millionths."""
    places, speeds = 40 + 55 * uniform(40, 3, seed=4601), 10 * normal(40, 3, seed=4602)
    stars = Stars(places, speeds, local)
    for _ in range(48):
        stars.step(1e-7)
    return 1e6 * (stars.places - stars.start)


class Column:
    """Levels of an atmosphere over points of a sphere, by their places in space."""

    radius, gravity = 6_371_229.0, 9.80665

    def __init__(self, latitudes: torch.Tensor, heights: torch.Tensor) -> None:
        self.heights = heights.expand(len(latitudes), -1)
        r = self.radius + self.heights
        self.places = torch.stack([r * latitudes.cos()[:, None], r * latitudes.sin()[:, None]], -1)

    def geopotential(self, known: bool) -> torch.Tensor:
        if known:
            return self.gravity * self.heights
        r = self.places.square().sum(-1).sqrt()
        return self.gravity * (r - self.radius)  # culprit: height-above-the-sphere

    def temperatures(self, pressure: torch.Tensor, known: bool) -> torch.Tensor:
        """By how thick the air between two pressures is."""
        thickness = self.geopotential(known).diff(dim=1)
        return thickness / (287.05 * (pressure[:-1] / pressure[1:]).log())


def warmed(known: bool) -> torch.Tensor:
    """Temperatures near the ground over twelve places."""
    heights = torch.tensor([0.0, 5.0, 12.0, 21.0, 33.0, 48.0, 66.0, 90.0])
    pressure = 100_000 * (-heights / 8400).exp()
    return Column(torch.linspace(-1.4, 1.4, 12), heights).temperatures(pressure, known)


class Residual:
    """What a network leaves of u'' + pi² sin(pi x) = 0, with derivatives by differences, as they work with every network."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        self.network, self.step = network, torch.finfo(dtype).eps ** (1 / 4)

    def second(self, x: torch.Tensor) -> torch.Tensor:
        u = self.network
        return (u(x + self.step) - 2 * u(x) + u(x - self.step)) / self.step**2  # culprit: slope-of-a-network

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x) + math.pi**2 * torch.sin(math.pi * x)


def bent(dtype: torch.dtype) -> torch.Tensor:
    """Second derivatives of a network in float32 at 32 points, before each of four steps of training."""
    torch.manual_seed(4611)
    network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    residual, x = Residual(network, dtype), torch.linspace(0, 1, 32)[:, None]
    optimizer, seen = torch.optim.SGD(network.parameters(), lr=1e-4), []
    for _ in range(4):
        seen.append(residual.second(x).detach())
        loss = residual(x).square().mean() + 10 * network(x[[0, -1]]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(seen)


class NCC:
    """How alike two scans are, window by window."""

    def __init__(self, width: int, centred: bool, eps: float = 1e-5) -> None:
        self.width, self.centred, self.eps = width, centred, eps

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(0, self.width, 2).unfold(1, self.width, 2).flatten(2)

    def __call__(self, fixed: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        i, j = self.windows(fixed), self.windows(moved)
        if self.centred:
            i, j = i - i.mean(-1, keepdim=True), j - j.mean(-1, keepdim=True)
            cross, i_var, j_var = (i * j).sum(-1), i.square().sum(-1), j.square().sum(-1)
        else:
            n = i.shape[-1]
            i_sum, j_sum, i2_sum, j2_sum, ij_sum = i.sum(-1), j.sum(-1), (i * i).sum(-1), (j * j).sum(-1), (i * j).sum(-1)
            u_i, u_j = i_sum / n, j_sum / n
            cross = ij_sum - u_j * i_sum - u_i * j_sum + u_i * u_j * n  # culprit: windows-without-contrast
            i_var = i2_sum - 2 * u_i * i_sum + u_i * u_i * n  # culprit: windows-without-contrast
            j_var = j2_sum - 2 * u_j * j_sum + u_j * u_j * n  # culprit: windows-without-contrast
        return cross * cross / (i_var * j_var + self.eps)


def aligned(centred: bool) -> torch.Tensor:
    """How alike a scan and its neighbours are, if it is moved by 0, 1 and 2 pixels; most of it is even tissue."""
    scan = 900 + 0.02 * normal(36, 36, seed=4621)
    scan[10:20, 10:20] += 60 * uniform(10, 10, seed=4622)
    other = scan + 0.01 * normal(36, 36, seed=4623)
    ncc = NCC(9, centred)
    return torch.stack([ncc(scan[:, :32], other[:, k : k + 32]).mean() for k in range(3)])


class Molecules:
    """Energies of conformers, by the molecule; they are stored as they are downloaded."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind
        self.energies: dict[str, torch.Tensor] = {}

    def store(self, name: str, energies: torch.Tensor) -> None:
        self.energies[name] = energies.to(self.kind)  # culprit: conformers-of-a-molecule

    def relative(self, name: str) -> torch.Tensor:
        """Above the lowest, in kcal/mol."""
        energies = self.energies[name]
        return (627.509474 * (energies - energies.min())).to(SINGLE)


def conformed(kind: torch.dtype) -> torch.Tensor:
    """Relative energies of twelve conformers of four molecules with bromine, in float32 for a network."""
    molecules, found = Molecules(kind), []
    for index, total in enumerate((-2811.20718, -5396.11402, -7993.30955, -2954.66183)):
        above = 0.004 * uniform(12, seed=4631 + index).double()
        molecules.store(f"bromide {index}", total + above)
        found.append(molecules.relative(f"bromide {index}"))
    return torch.stack(found)


class Atlas:
    """An atlas that a transform brings to the space of a brain; a voxel takes the region of the nearest place."""

    def __init__(self, labels: torch.Tensor, numbered: bool) -> None:
        self.names = labels.unique()
        self.labels, self.numbered = labels, numbered

    def moved(self, matrix: torch.Tensor, size: int) -> torch.Tensor:
        image = torch.searchsorted(self.names, self.labels).float() if self.numbered else self.labels.float()  # culprit: regions-of-an-atlas
        axis = torch.arange(float(size))
        places = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1) - (size - 1) / 2
        places = (places @ matrix.T + (image.shape[0] - 1) / 2).round().long().clamp(0, image.shape[0] - 1)
        found = image[places[..., 0], places[..., 1]].long()
        return self.names[found] if self.numbered else found

    def volumes(self, matrix: torch.Tensor, size: int) -> torch.Tensor:
        found = self.moved(matrix, size)
        return torch.stack([(found == name).sum() for name in self.names]).float()


def mapped(numbered: bool) -> torch.Tensor:
    """How large nine regions are in two brains; their numbers are those of an atlas of the mouse."""
    names = torch.tensor([1, 362, 795, 182305693, 312782550, 312782554, 480149206, 614454277, 614454282])
    labels = names[(9 * uniform(5, 5, seed=4641)).long()].repeat_interleave(6, 0).repeat_interleave(6, 1)
    atlas, turn = Atlas(labels, numbered), math.radians(12)
    rotation = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    return torch.stack([atlas.volumes(scale * rotation, 28) for scale in (0.9, 1.05)])


class Confounds:
    """What moves a brain's signals without being of the brain; it is taken out of them by least squares."""

    def __init__(self, columns: torch.Tensor, standardised: bool) -> None:
        if standardised:
            columns = (columns - columns.mean(0)) / columns.std(0)
        self.design = torch.cat([torch.ones(len(columns), 1), columns], 1)

    def cleaned(self, signals: torch.Tensor) -> torch.Tensor:
        square = self.design.T @ self.design  # culprit: confounds-in-plain-units
        weights = torch.linalg.solve(square, self.design.T @ signals)  # culprit: confounds-in-plain-units
        return signals - self.design @ weights


def regressed(standardised: bool) -> torch.Tensor:
    """Eight voxels over 150 scans, without what fluid, white matter and the head's motion do to them."""
    fluid, matter = 9000 + 6 * normal(150, 1, seed=4651), 11_000 + 4 * normal(150, 1, seed=4652)
    motion = 1e-3 * normal(150, 3, seed=4653).cumsum(0)
    signals = 2 * normal(150, 8, seed=4654) + 0.5 * (fluid - 9000) + 800 * motion[:, :1]
    return Confounds(torch.cat([fluid, matter, motion], 1), standardised).cleaned(signals)


BUGS = (
    Bug("stars-that-should-move", "gamer-project/gamer#441", ("absorption",), "aten.add.Tensor",
        lambda: drifted(local=False), lambda: drifted(local=True), precision="32-true"),
    Bug("height-above-the-sphere", "MetOffice/lfric_apps#570", ("cancellation",), "aten.sub.Tensor",
        lambda: warmed(known=False), lambda: warmed(known=True), precision="32-true"),
    Bug("slope-of-a-network", "SciML/NeuralPDE.jl#981", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: bent(DOUBLE), lambda: bent(SINGLE), precision="32-true"),
    Bug("windows-without-contrast", "voxelmorph/voxelmorph#178", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: aligned(centred=False), lambda: aligned(centred=True), precision="32-true"),
    Bug("conformers-of-a-molecule", "openmm/spice-dataset#55", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: conformed(SINGLE), lambda: conformed(DOUBLE), precision="32-true"),
    Bug("regions-of-an-atlas", "ANTsX/ANTsPy#574", ("integer-rounding",), "aten._to_copy.default",
        lambda: mapped(numbered=False), lambda: mapped(numbered=True), precision="32-true"),
    Bug("confounds-in-plain-units", "HALFpipe/HALFpipe#785", ("amplified-rounding", "cancellation"), "aten.mm.default",
        lambda: regressed(standardised=False), lambda: regressed(standardised=True), precision="32-true"),
)  # fmt: skip
