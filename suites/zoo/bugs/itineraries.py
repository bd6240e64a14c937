"""Itineraries: ways between fixes, corners of far models, rafts far from home, notes that are held, flows of money, sleepers, gyroscopes."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform, wider

SINGLE, DOUBLE = torch.float32, torch.float64
EARTH = 6_371_000.0


class Track:
    """Where somebody has been, as degrees of latitude and longitude."""

    def __init__(self, fixes: torch.Tensor) -> None:
        self.fixes = torch.deg2rad(fixes)

    def ways(self) -> torch.Tensor:
        """The metres from each fix to the next."""
        (north, east), (north_next, east_next) = self.fixes[:-1].T, self.fixes[1:].T
        turned = torch.cos(north) * torch.cos(north_next) * torch.cos(east - east_next)  # culprit: way-to-the-next-fix
        together = torch.sin(north) * torch.sin(north_next) + turned  # culprit: way-to-the-next-fix
        return EARTH * torch.acos(together)  # culprit: way-to-the-next-fix


def walked(kind: torch.dtype) -> torch.Tensor:
    """The steps of a walk in Bergen, of a few metres each. Most are nought, or none at all."""
    steps = torch.tensor([4e-5, 6e-5]) * (1 + 0.5 * normal(50, 2, seed=331))
    return Track((torch.tensor([60.51, 6.67]).double() + steps.double().cumsum(0)).to(kind)).ways()


class Viewer:
    """Draws the corners of a model as a camera sees them."""

    def __init__(self, eye: torch.Tensor, kind: torch.dtype) -> None:
        self.kind = kind
        view = torch.eye(4, dtype=kind)
        view[:3, 3] = -eye.to(kind)
        lens = torch.tensor([[1.8, 0, 0, 0], [0, 2.4, 0, 0], [0, 0, -1.002, -0.2], [0, 0, -1, 0]], dtype=kind)
        self.matrix = lens @ view

    def draw(self, corners: torch.Tensor) -> torch.Tensor:
        """Pixels, from corners in world coordinates."""
        world = torch.cat([corners.to(self.kind), torch.ones(len(corners), 1, dtype=self.kind)], -1)
        clip = world @ self.matrix.T  # culprit: corners-of-a-far-model
        return 540 * clip[:, :2] / clip[:, 3:]


def drawn(kind: torch.dtype) -> torch.Tensor:
    """The corners of a stair in a town's coordinates, seen from ten metres. They tremble."""
    place = torch.tensor([412_310.0, 5_654_780.0, 120.0], dtype=DOUBLE)
    corners = place + torch.tensor([2.0, 1.5, 1.0]) * (uniform(40, 3, seed=332).double() - 0.5)
    return Viewer(place + torch.tensor([0.13, 0.31, 10.2]), kind).draw(corners)


class Raft:
    """Something that players have built and that floats."""

    def __init__(self, place: torch.Tensor, speed: torch.Tensor) -> None:
        self.place, self.speed = place, speed

    def tick(self, push: torch.Tensor, seconds: float = 0.05) -> None:
        self.speed = 0.98 * self.speed + seconds * push
        self.place = self.place + seconds * self.speed  # culprit: raft-far-from-home


def floated(kind: torch.dtype, ticks: int = 120) -> torch.Tensor:
    """How far four rafts have gone in six seconds, where a server has put its players. Along the axes, if at all."""
    start = torch.tensor([[370_114.0, 63.0, 368_902.0]], dtype=kind).expand(4, 3)
    raft = Raft(start, torch.zeros(4, 3, dtype=kind))
    push = torch.tensor([0.09, 0.0, 0.05], dtype=kind) * (1 + 0.4 * normal(4, 1, seed=333).to(kind))
    for _ in range(ticks):
        raft.tick(push)
    return wider(raft.place - start)


class Oscillator:
    """Plays a short sound that lies somewhere in a large bank of sounds, at another pitch."""

    def __init__(self, bank_start: int, pitches: torch.Tensor) -> None:
        self.place = torch.full_like(pitches, float(bank_start))
        self.pitches = pitches

    def sample(self, sound: torch.Tensor) -> torch.Tensor:
        whole = torch.floor(self.place)
        index, part = whole.long() % len(sound), self.place - whole
        self.place = self.place + self.pitches  # culprit: note-that-is-held
        return sound[index] * (1 - part) + sound[(index + 1) % len(sound)] * part


def held(kind: torch.dtype, samples: int = 70) -> torch.Tensor:
    """A chord of four notes that is held. Its pitches drop."""
    sound = torch.sin(2 * math.pi * torch.arange(96) / 96).to(kind)
    oscillator = Oscillator(1_130_016, torch.tensor([0.5312, 0.6691, 0.7958, 1.0624], dtype=kind))
    return torch.stack([oscillator.sample(sound) for _ in range(samples)])


class MovingSum:
    """The sum of the last few numbers of a series, of which each is added once and taken away once."""

    def __init__(self, window: int) -> None:
        self.window = window

    def compute(self, series: torch.Tensor) -> torch.Tensor:
        total, sums = torch.zeros((), dtype=series.dtype), []
        for place, number in enumerate(series):
            total = total + number  # culprit: flow-in-a-quiet-market
            if place >= self.window:
                total = total - series[place - self.window]  # culprit: flow-in-a-quiet-market
            sums.append(total)
        return torch.stack(sums)


def money_flow(kind: torch.dtype) -> torch.Tensor:
    """How much money flows into a share on quiet days, some weeks after a busy one. More than there is."""
    volume = (900 + 400 * uniform(120, seed=334)).double()
    volume[20:24] = torch.tensor([3.1e9, 7.7e9, 5.3e9, 2.9e9])
    pressure = (0.3 * normal(120, seed=335)).double()
    flow, traded = MovingSum(20).compute((pressure * volume).to(kind)), MovingSum(20).compute(volume.to(kind))
    return (flow / traded)[60:]


class Accelerometer:
    """What somebody's wrist felt in a night, as multiples of gravity."""

    def __init__(self, magnitude: torch.Tensor) -> None:
        self.magnitude = magnitude

    def smooth(self, width: int) -> torch.Tensor:
        """The moving mean, by differences of sums from the beginning."""
        sums = self.magnitude.cumsum(0)  # culprit: movements-of-a-sleeper
        return (sums[width:] - sums[:-width]) / width  # culprit: movements-of-a-sleeper


def movements(kind: torch.dtype, many: int = 120_000) -> torch.Tensor:
    """How much a sleeper moved, less gravity. A stair."""
    time = torch.arange(many).double()
    felt = 1 + 0.002 * torch.sin(time / 700) + 0.0005 * normal(many, seed=336)
    return Accelerometer(felt.to(kind)).smooth(10) - 1


class Biquad:
    """A filter of second order that lets slow movements pass, as it runs on a flight controller."""

    def __init__(self, cutoff: float, rate: float, kind: torch.dtype) -> None:
        omega = torch.tensor(2 * math.pi * cutoff / rate, dtype=kind)
        alpha = torch.sin(omega) / math.sqrt(2)
        whole = 1 + alpha
        self.forward = (1 - torch.cos(omega)) / 2 / whole  # culprit: drift-of-a-gyroscope
        self.back1, self.back2 = -2 * torch.cos(omega) / whole, (1 - alpha) / whole  # culprit: drift-of-a-gyroscope
        self.taken, self.given = [torch.zeros(3, dtype=kind)] * 2, [torch.zeros(3, dtype=kind)] * 2

    def apply(self, number: torch.Tensor) -> torch.Tensor:
        (last, before), (given, earlier) = self.taken, self.given
        result = self.forward * (number + 2 * last + before) - self.back1 * given - self.back2 * earlier  # culprit: drift-of-a-gyroscope
        self.taken, self.given = [number, last], [result, given]
        return result


def drifts(kind: torch.dtype, samples: int = 150) -> torch.Tensor:
    """The drift of three gyroscopes, as a filter of half a hertz sees it beside eight thousand samples a second. Too much."""
    biquad = Biquad(0.5, 8000.0, kind)
    still = torch.tensor([3.1, -7.4, 12.6], dtype=kind)
    return torch.stack([biquad.apply(still) for _ in range(samples)])


BUGS = (
    Bug("way-to-the-next-fix", "mapbox/mapbox-gl-native#3556", ("amplified-rounding", "cancellation", "nan"), "aten.add.Tensor",
        lambda: walked(SINGLE), lambda: walked(DOUBLE), precision="32-true"),
    Bug("corners-of-a-far-model", "specklesystems/speckle-server#710", ("cancellation", "amplified-rounding", "local-drift"), "aten.mm.default",
        lambda: drawn(SINGLE), lambda: drawn(DOUBLE), precision="32-true",
        expected_miss="a product that cancels to less than 2^-17 of its terms is taken for what no reference determines, even beside float64"),
    Bug("raft-far-from-home", "Creators-of-Aeronautics/Simulated-Project#550", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: floated(SINGLE), lambda: floated(DOUBLE), precision="32-true"),
    Bug("note-that-is-held", "vsariola/sointu#164", ("absorption", "accumulated-drift", "cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: held(SINGLE), lambda: held(DOUBLE), precision="32-true"),
    Bug("flow-in-a-quiet-market", "cinar/indicator#410", ("absorption", "cancellation", "accumulated-drift", "amplified-rounding"),
        "aten.sub.Tensor",
        lambda: money_flow(SINGLE), lambda: money_flow(DOUBLE), precision="32-true"),
    Bug("movements-of-a-sleeper", "wadpac/GGIR#326", ("cancellation", "amplified-rounding"), "aten.cumsum.default",
        lambda: movements(SINGLE), lambda: movements(DOUBLE), precision="32-true"),
    Bug("drift-of-a-gyroscope", "betaflight/betaflight#380", ("cancellation", "amplified-rounding", "accumulated-drift"), "aten.rsub.Scalar",
        lambda: drifts(SINGLE), lambda: drifts(DOUBLE), precision="32-true"),
)  # fmt: skip
