"""What goes on in time: oceans and their forcing, cells of a globe, molecules, oscillators, clouds of particles."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


class SurfaceForcing:
    """Winds that are given every three hours, at absolute Julian days; a model's step lies between two of them."""

    def __init__(self, days: torch.Tensor, fields: torch.Tensor, dtype: torch.dtype) -> None:
        self.times, self.fields, self.dtype = days.to(dtype), fields.to(dtype), dtype  # culprit: forcing-times

    def at(self, day: float) -> torch.Tensor:
        date = torch.tensor(day, dtype=self.dtype)
        before = int((self.times <= date).sum().clamp(1, len(self.times) - 1)) - 1
        length = self.times[before + 1] - self.times[before]  # culprit: forcing-times
        slope = (self.fields[before + 1] - self.fields[before]) / length  # culprit: forcing-times
        start = self.fields[before] - slope * self.times[before]  # culprit: forcing-times
        return (date * slope + start).float()  # culprit: forcing-times


def forced(dtype: torch.dtype) -> torch.Tensor:
    """A day of winds from the year 1958, whose first day is 2 436 204.5 days after the epoch."""
    days = 2436204.5 + torch.arange(9, dtype=DOUBLE) / 8
    forcing = SurfaceForcing(days, 8 * normal(9, 24), dtype)
    return torch.stack([forcing.at(2436204.5 + hour / 24 + 0.01) for hour in range(3, 23, 4)])


def corners(latitudes: torch.Tensor, longitudes: torch.Tensor) -> torch.Tensor:
    return torch.stack([latitudes.cos() * longitudes.cos(), latitudes.cos() * longitudes.sin(), latitudes.sin()], -1)


def area_weights(latitudes: torch.Tensor, longitudes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The area of each triangle of a grid on the unit sphere, over their mean: what a loss weighs grid points by."""
    points = corners(latitudes.to(dtype).deg2rad(), longitudes.to(dtype).deg2rad())  # culprit: cell-areas
    a, b, c = points[:-1, :-1], points[1:, :-1], points[:-1, 1:]
    volume = (a * torch.linalg.cross(b, c)).sum(-1).abs()  # culprit: cell-areas
    areas = 2 * torch.atan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))
    return (areas / areas.mean()).float()


def weighed(dtype: torch.dtype) -> torch.Tensor:
    """A region of Norway at two and a half kilometres."""
    rows, columns = torch.arange(16, dtype=DOUBLE), torch.arange(16, dtype=DOUBLE)
    latitudes = (59.0 + 0.0225 * rows)[:, None] + 0.001 * columns
    longitudes = 10.0 + 0.044 * columns + 0.001 * rows[:, None]
    return area_weights(latitudes, longitudes, dtype)


def potential(positions: torch.Tensor, fixed_point: bool) -> torch.Tensor:
    """The energy of a chain of charges in a box, added up pair list by pair list as blocks of a kernel do."""
    total = torch.zeros((), dtype=torch.int64) if fixed_point else torch.tensor(-6.0e6)
    for first in range(len(positions) - 1):
        distances = (positions[first + 1 :] - positions[first]).norm(dim=-1)
        energies = (0.4 / distances - 0.1 / distances**6).sum()
        if fixed_point:
            total = total + (energies.double() * 2**32).round().long()
        else:
            total = total + energies  # culprit: summed-energies
    return total


def stretched(fixed_point: bool) -> torch.Tensor:
    """How the energy rises along a path of three shapes; the molecule's own electrons have -6 million of it in each."""
    start = torch.cumsum(torch.nn.functional.normalize(normal(180, 3) + torch.tensor([1.5, 0, 0]), dim=-1), 0) * 1.6
    energies = torch.stack([potential(start * (1 + 0.001 * step), fixed_point) for step in range(3)])
    rises = energies[1:] - energies[0]  # culprit: summed-energies
    return (rises.double() / 2**32).float() if fixed_point else rises


class SineOscillator:
    """Voices of a synthesizer: each sample moves the phase on by a fixed angle."""

    def __init__(self, phase: torch.Tensor, pitches: torch.Tensor, wrapped: bool) -> None:
        self.phase, self.wrapped = phase, wrapped
        self.step = 2 * math.pi * pitches / 48_000

    def block(self, samples: int) -> torch.Tensor:
        made = []
        for _ in range(samples):
            made.append(torch.sin(self.phase))
            self.phase = self.phase + self.step  # culprit: long-notes
            if self.wrapped:
                self.phase = torch.remainder(self.phase, 2 * math.pi)
        return torch.stack(made)


def held(wrapped: bool) -> torch.Tensor:
    """Ten milliseconds of four notes that a latch has held for nine minutes."""
    phase = torch.tensor([1_228_800.0, 1_843_200.0, 2_457_600.0, 3_686_400.0])
    start = torch.remainder(phase.double(), 2 * math.pi).float() if wrapped else phase
    return SineOscillator(start, torch.tensor([360.0, 540.0, 720.0, 1080.0]), wrapped).block(480)


class ParticleFilter:
    """A robot in a corridor of which there are two alike: particles are weighed by how well they explain what is seen."""

    def __init__(self, number: int, in_logs: bool) -> None:
        self.in_logs = in_logs
        self.weights = torch.full((number,), -math.log(number) if in_logs else 1 / number)

    def update(self, scores: torch.Tensor) -> None:
        if self.in_logs:
            self.weights = torch.log_softmax(self.weights + scores, 0)
            return
        posterior = self.weights.log() + scores  # culprit: particle-weights
        self.weights = torch.softmax(posterior, 0)  # culprit: particle-weights


def tracked(in_logs: bool) -> torch.Tensor:
    """A hundred beams a scan: the first scan speaks for one corridor, the two that follow for the other."""
    cloud, places = ParticleFilter(40, in_logs), uniform(40)
    cloud.update(torch.where(torch.arange(40) < 30, -2.0, -125.0) + normal(40, seed=1))
    cloud.update(torch.where(torch.arange(40) < 30, -80.0, -4.0) + normal(40, seed=2))
    cloud.update(torch.where(torch.arange(40) < 30, -78.0, -3.0) + normal(40, seed=3))
    weights = cloud.weights.exp() if in_logs else cloud.weights
    return torch.stack([(weights * places).sum(), weights[:30].sum(), weights[30:].sum()])


BUGS = (
    Bug("forcing-times", "FESOM/fesom2#940", ("amplified-rounding", "cancellation", "overflow", "nan"), "aten._to_copy.default",
        lambda: forced(WIDE), lambda: forced(DOUBLE), precision="32-true"),
    Bug("cell-areas", "ecmwf/anemoi-core#362", ("cancellation", "amplified-rounding"), "aten.sum.dim_IntList", lambda: weighed(WIDE),
        lambda: weighed(DOUBLE), precision="32-true"),
    Bug("summed-energies", "TinkerTools/tinker-gpu#3", ("amplified-rounding", "cancellation", "absorption"), "aten.sub.Tensor",
        lambda: stretched(False), lambda: stretched(True), precision="32-true"),
    Bug("long-notes", "surge-synthesizer/surge#1806", ("amplified-rounding", "accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: held(False), lambda: held(True), precision="32-true"),
    Bug("particle-weights", "kmolan/multicalc-rust#205", ("underflow", "overflow"), "aten._softmax.default", lambda: tracked(False),
        lambda: tracked(True), precision="32-true"),
)  # fmt: skip
