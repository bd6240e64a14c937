"""Long ways: lengths of roads, half turns, hours of sound, seconds since 1970, walls far away, means of long columns."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE = torch.float16, torch.float32
EARTH = 6373000.0


class Roads:
    """Nodes by latitude and longitude, and ways along them."""

    def __init__(self, latitude: torch.Tensor, longitude: torch.Tensor, by_halves: bool) -> None:
        self.latitude, self.longitude, self.by_halves = torch.deg2rad(latitude), torch.deg2rad(longitude), by_halves

    def edges(self) -> torch.Tensor:
        """How far each node is from the one before it on its way."""
        here, there = self.latitude[:, 1:], self.latitude[:, :-1]
        turn = self.longitude[:, 1:] - self.longitude[:, :-1]
        if self.by_halves:
            half = ((here - there) / 2).sin().square() + here.cos() * there.cos() * (turn / 2).sin().square()
            return 2 * EARTH * half.sqrt().asin()
        cosine = here.sin() * there.sin() + here.cos() * there.cos() * turn.cos()  # culprit: length-of-a-road
        return EARTH * cosine.clamp_max(1).acos()  # culprit: length-of-a-road

    def lengths(self) -> torch.Tensor:
        return self.edges().sum(1)


def roads(by_halves: bool, step: float = 4e-4) -> torch.Tensor:
    """The lengths of eight ways, whose nodes are some forty metres apart. Garbage."""
    north = 48.1 + uniform(8, 1) + (step * (0.5 + uniform(8, 30, seed=1))).cumsum(1)
    east = 11.5 + uniform(8, 1, seed=2) + (step * normal(8, 30, seed=3)).cumsum(1)
    return Roads(north, east, by_halves).lengths()


class Turns(nn.Module):
    """Turns of a camera between frames, as an axis times an angle."""

    def __init__(self, by_quaternion: bool) -> None:
        super().__init__()
        self.by_quaternion = by_quaternion

    def forward(self, turn: torch.Tensor) -> torch.Tensor:
        skew = torch.stack([turn[:, 2, 1] - turn[:, 1, 2], turn[:, 0, 2] - turn[:, 2, 0], turn[:, 1, 0] - turn[:, 0, 1]], 1)
        trace = turn.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
        if self.by_quaternion:  # by the largest of its parts, which is far from nought
            first = turn[:, 0, 0]
            part = (1 + 2 * first[:, None] - trace).sqrt() / 2
            others = torch.stack([turn[:, 0, 1] + turn[:, 1, 0], turn[:, 0, 2] + turn[:, 2, 0]], 1) / (4 * part)
            vector, scalar = torch.cat([part, others], 1), skew[:, :1] / (4 * part)
            angle = 2 * torch.atan2(vector.norm(dim=1, keepdim=True), scalar)
            return angle * nn.functional.normalize(vector, dim=1)
        angle = ((trace - 1) / 2).clamp(-1, 1).acos()  # culprit: half-turn
        return angle / (2 * angle.sin()) * skew  # culprit: half-turn


def matrices(axis: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rodrigues' formula, in float64, and rounded once."""
    axis, angle = nn.functional.normalize(axis.double(), dim=1), angle.double()[:, None, None]
    zero = torch.zeros(len(axis), dtype=axis.dtype)
    x, y, z = axis.unbind(1)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).unflatten(1, (3, 3))
    return (torch.eye(3, dtype=axis.dtype) + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)).float()


def turned(by_quaternion: bool, short: float = 6e-4) -> torch.Tensor:
    """Turns of a camera that looks back: nearly half a turn, about an axis near the first. A thousand turns."""
    axis = torch.tensor([1.0, 0.3, -0.2]) + 0.2 * normal(20, 3)
    return Turns(by_quaternion)(matrices(axis, math.pi - short * (0.2 + uniform(20, seed=1))))


class Beep:
    """A tone, whose time is the number of the sample."""

    def __init__(self, pitch: float, rate: int, folded: bool) -> None:
        self.pitch, self.rate, self.folded = pitch, rate, folded

    def samples(self, first: int, many: int) -> torch.Tensor:
        clock = torch.arange(first, first + many)
        if self.folded:
            clock = clock % self.rate
        turned = clock.float() * self.pitch * 2 * math.pi / self.rate  # culprit: beep-of-an-hour
        return turned.sin()


def beep(folded: bool, minutes: float = 60.0, loud: float = 0.4) -> torch.Tensor:
    """A block of a beep, after an hour. Garbage."""
    block = Beep(440.0, 44100, folded).samples(int(minutes * 60 * 44100), 512)
    return loud * block


class Chart:
    """A line through points, by where they are on a screen."""

    def __init__(self, width: float, since: int) -> None:
        self.width, self.since = width, since

    def places(self, time: torch.Tensor) -> torch.Tensor:
        x = (time - self.since).float()  # culprit: chart-of-seconds
        first, last = x.min(), x.max()
        return (x - first) / (last - first) * self.width


def chart(since_first: bool, start: int = 1472112259, every: int = 35) -> torch.Tensor:
    """Where thirty readings are on a chart, which were taken half a minute apart. Eight places in all."""
    time = start + (every * torch.arange(30)) + (3 * normal(30)).round().long()
    return Chart(1080.0, int(time[0]) if since_first else 0).places(time)


class Stereo(nn.Module):
    """How far points are, from how far they are apart in two images: the mean of all shifts by how well they fit."""

    def __init__(self, shifts: int, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.register_buffer("shift", torch.arange(float(shifts)))

    def shifts(self, fit: torch.Tensor) -> torch.Tensor:
        likely = torch.softmax(fit, -1)
        if self.wide:
            return (wider(likely) * wider(self.shift)).sum(-1) / wider(likely).sum(-1)
        return (likely * self.shift).sum(-1)  # culprit: depth-of-a-flat-wall

    def forward(self, fit: torch.Tensor) -> torch.Tensor:
        depth = 400.0 / wider(self.shifts(fit))
        return depth[:, 1:] - depth[:, :-1]


def wall(wide: bool, near: float = 180.0, tilt: float = 0.11) -> torch.Tensor:
    """How steep a wall is at each place, which is seen from the side. Garbage."""
    true = near + tilt * torch.arange(40) + uniform(4, 1)
    off = torch.arange(220.0) - true[..., None]
    return Stereo(220, wide).to(HALF)((-0.5 * off.square()).clamp_min(-30).to(HALF))


class Column:
    """A column of a table, of which all is kept in half precision."""

    def __init__(self, values: torch.Tensor, wide: bool) -> None:
        self.values, self.wide = values, wide

    def mean(self) -> torch.Tensor:
        there = ~self.values.isnan()
        kind = SINGLE if self.wide else self.values.dtype
        total = torch.where(there, self.values, torch.zeros_like(self.values)).sum(dtype=kind)
        count = there.sum().to(kind)  # culprit: mean-of-a-long-column
        return wider(total / count)


def column_means(wide: bool, rows: int = 90000) -> torch.Tensor:
    """The means of the sine of the hour of many visits, of four shops. Nought."""
    hours = 24 * uniform(rows, 4).pow(torch.tensor([1.5, 2.0, 0.6, 3.0]))
    sines = (hours * math.pi / 24).sin().to(HALF)
    return torch.stack([Column(each, wide).mean() for each in sines.T])


BUGS = (
    Bug("length-of-a-road", "AndGem/OsmToRoadGraph#90", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: roads(False), lambda: roads(True), precision="32-true"),
    Bug("half-turn", "lmb-freiburg/lmbspecialops#18", ("amplified-rounding", "cancellation"), "aten.acos.default",
        lambda: turned(False), lambda: turned(True), module="Turns", precision="32-true"),
    Bug("beep-of-an-hour", "RustAudio/cpal#157", ("amplified-rounding", "integer-rounding"), "aten.mul.Tensor",
        lambda: beep(False), lambda: beep(True), precision="32-true"),
    Bug("chart-of-seconds", "PhilJay/MPAndroidChart#2195", ("integer-rounding", "cancellation"), "aten._to_copy.default",
        lambda: chart(False), lambda: chart(True), precision="32-true"),
    Bug("depth-of-a-flat-wall", "NVlabs/FoundationStereo#225", ("amplified-rounding", "cancellation"), "aten.sum.dim_IntList",
        lambda: wall(False), lambda: wall(True), module="Stereo"),
    Bug("mean-of-a-long-column", "pandas-dev/pandas#20642", ("overflow",), "aten._to_copy.default",
        lambda: column_means(False), lambda: column_means(True)),
)  # fmt: skip
