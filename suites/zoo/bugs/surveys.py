"""Measured positions and times in single precision: clocks of a telescope, falling bodies, catalogues of stars, a lamp in a dark room."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE = "32-true"


def noise_model(times: torch.Tensor, knee: float, slope: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The sample rate of an observation and the power of its noise, which falls with the frequency down to a white floor."""
    rate = (len(times) - 1) / (times.max() - times.min())  # culprit: rebased-clock
    frequency = torch.arange(1, 200) * rate / len(times)
    return rate[None], 1 + (knee / frequency) ** slope


def telescope(rebased: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Twenty-five minutes at forty samples a second, whose times are read in seconds since 1970."""
    times = 1_718_020_845.25 + torch.arange(60_000, dtype=torch.float64) / 40
    times = times - times[0] if rebased else times
    return noise_model(times.to(torch.float32), 0.8, 1.7)  # culprit: rebased-clock


def simulate(height: float, substeps: int, by_velocity: bool) -> torch.Tensor:
    """How far twelve bodies have fallen after a second of an engine's steps of a sixtieth."""
    position = torch.stack([4 * normal(12), height + uniform(12), 4 * normal(12, seed=1)], -1)
    velocity = 0.2 * normal(12, 3, seed=2)
    start, step, pull = position.clone(), 1 / 60 / substeps, torch.tensor([0.0, -9.81, 0.0])
    before = position - velocity * step
    for _ in range(60 * substeps):
        if by_velocity:
            velocity = velocity + pull * step
            position = position + velocity * step
        else:
            moved = (position - before) * 0.9999  # culprit: gravity-aloft
            position, before = position + moved + pull * step**2, position  # culprit: gravity-aloft
    return (start - position)[:, 1]


def unit_vectors(longitude: torch.Tensor, latitude: torch.Tensor) -> torch.Tensor:
    longitude, latitude = torch.deg2rad(longitude), torch.deg2rad(latitude)
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], -1)


def sphere_distance(one: torch.Tensor, other: torch.Tensor, by_chord: bool) -> torch.Tensor:
    if by_chord:
        return 2 * torch.asin((one - other).square().sum(-1).sqrt() / 2)
    cosine = (one * other).sum(-1)  # culprit: pairs-of-stars
    return torch.arccos(cosine.clamp(-1, 1))  # culprit: pairs-of-stars


def matches(by_chord: bool) -> torch.Tensor:
    """Seconds of arc between 300 stars and what another catalogue takes for them, one to two minutes away."""
    longitude, latitude = 100 * uniform(300), 80 * uniform(300, seed=1) - 40
    around, away = 2 * math.pi * uniform(300, seed=2), (60 + 60 * uniform(300, seed=3)) / 3600
    first = unit_vectors(longitude, latitude)
    second = unit_vectors(longitude + away * around.sin() / torch.deg2rad(latitude).cos(), latitude + away * around.cos())
    return torch.rad2deg(sphere_distance(first, second, by_chord)) * 3600


def box_filter(image: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The mean of each window of a row, by a sum that gains a pixel and loses one at each step."""
    running = image[:, :size].to(dtype).sum(1)
    means = [running / size]
    for column in range(image.shape[1] - size):
        running = running + (image[:, column + size].to(dtype) - image[:, column].to(dtype))  # culprit: lamp-in-a-dark-room
        means.append(running / size)
    return torch.stack(means, 1).to(image.dtype)


def exposure(dtype: torch.dtype) -> torch.Tensor:
    """Stops of light in a dark room, on the side of a lamp that the filter meets last."""
    image = 0.002 + 0.004 * uniform(12, 200)
    image[:, 60:64] = 3e4 + 1e4 * uniform(12, 4, seed=1)
    return torch.log2(box_filter(image, 15, dtype)[:, 70:].clamp_min(1e-6))


BUGS = (
    Bug("rebased-clock", "CMBSciPol/furax#145", ("amplified-rounding", "cancellation", "integer-rounding"), "aten._to_copy.default",
        lambda: telescope(False), lambda: telescope(True), precision=SINGLE),
    Bug("gravity-aloft", "havokentity/demont-engine#270", ("cancellation", "absorption", "accumulated-drift"), "aten.sub.Tensor",
        lambda: simulate(2000, 8, False), lambda: simulate(2000, 8, True), precision=SINGLE),
    Bug("pairs-of-stars", "esheldon/smatch#21", ("amplified-rounding", "cancellation"), "aten.sum.dim_IntList", lambda: matches(False),
        lambda: matches(True), precision=SINGLE),
    Bug("lamp-in-a-dark-room", "opencv/opencv#7124", ("cancellation", "absorption"), "aten.add.Tensor", lambda: exposure(torch.float32),
        lambda: exposure(torch.float64), precision=SINGLE),
)  # fmt: skip
