"""Gorges: targets in plain units, moving windows, carriers off their centre, microphones, robots on their backs, controllers, late events."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64


class StdScaler:
    """Brings each series to mean 0 and spread 1; values that were not observed have weight 0."""

    def __init__(self, wide: bool, minimum: float = 1e-5) -> None:
        self.wide, self.minimum = wide, minimum

    def __call__(self, data: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = weights.sum(1, keepdim=True).clamp(min=1)
        loc = (data * weights).sum(1, keepdim=True) / count
        around = (data - loc) * weights
        if self.wide:
            variance = around.double().square().sum(1, keepdim=True) / count
        else:
            variance = (around**2).sum(1, keepdim=True) / count  # culprit: target-in-plain-units
        scale = torch.sqrt(variance + self.minimum).to(data.dtype)
        return (data - loc) / scale, loc, scale


class Forecaster(nn.Module):
    """Continues series by a linear layer on what has been scaled."""

    def __init__(self, wide: bool, past: int = 24, future: int = 6) -> None:
        super().__init__()
        torch.manual_seed(4461)
        self.scaler, self.layer, self.past = StdScaler(wide), nn.Linear(past, future), past

    def forward(self, series: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scaled, loc, scale = self.scaler(series, torch.ones_like(series))
        return self.layer(scaled), loc, scale


def forecast(wide: bool) -> torch.Tensor:
    """Six more days of four series that are counted in units of an atom, after eight steps of training."""
    days = torch.arange(30.0)
    series = 1e20 * (2 + torch.sin(days / 4 + torch.arange(4.0)[:, None]) + 0.05 * normal(4, 30, seed=4462))
    model = Forecaster(wide)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(8):
        guess, loc, scale = model(series[:, :24])
        loss = (guess - (series[:, 24:] - loc) / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        guess, loc, scale = model(series[:, :24])
        return (guess * scale + loc) / 1e20


def move_std(series: torch.Tensor, window: int, wide: bool) -> torch.Tensor:
    """The spread within a window that moves along each series; what leaves and what enters change it."""
    x = series.double() if wide else series
    first = x[:, :window]
    mean = first.mean(1)
    squares = (first - mean[:, None]).square().sum(1)
    spreads = [(squares / window).sqrt()]
    for t in range(window, x.shape[1]):
        new, old = x[:, t], x[:, t - window]
        change = new - old
        left = old - mean
        mean = mean + change / window  # culprit: spread-of-a-moving-window
        squares = (squares + (new - mean + left) * change).clamp(min=0)  # culprit: spread-of-a-moving-window
        spreads.append((squares / window).sqrt())
    return torch.stack(spreads, 1).to(series.dtype)


def moving(wide: bool) -> torch.Tensor:
    """Spreads of six series, which begin with some readings of a sensor that was still switching on."""
    series = normal(6, 40, seed=4471)
    series[:, :5] = 1e5 * (1 + uniform(6, 5, seed=4472))
    return move_std(series, 4, wide)[:, 8:]


class Modulator:
    """Adds up a phase, sample by sample, and brings it back between -pi and pi."""

    def __init__(self, sensitivity: float, carriers: int, keeps: bool) -> None:
        self.sensitivity, self.keeps = sensitivity, keeps
        self.phase = torch.zeros(carriers)

    def work(self, samples: torch.Tensor) -> torch.Tensor:
        out = []
        for sample in samples:
            self.phase = self.phase + self.sensitivity * sample
            wrapped = torch.fmod(self.phase + math.pi, 2 * math.pi) - math.pi  # culprit: carrier-just-off-centre
            self.phase = torch.where(self.phase.abs() > math.pi, wrapped, self.phase) if self.keeps else wrapped
            out.append(self.phase)
        return torch.stack(out)


def modulated(keeps: bool) -> torch.Tensor:
    """Phases of five carriers that are a few millionths off the centre, over 300 samples."""
    offsets = torch.tensor([0.7, 1.1, 2.3, 3.7, 5.9])
    samples = offsets * (1 + 0.2 * uniform(300, 5, seed=4481))
    return 1e3 * Modulator(1e-7, 5, keeps).work(samples)


class Meter:
    """How loud a microphone is, block by block; the converter adds half of its range to what it hears."""

    def __init__(self, block: int, centred: bool) -> None:
        self.block, self.centred = block, centred

    def std(self, x: torch.Tensor) -> torch.Tensor:
        n = len(x)
        if self.centred:
            return ((x - x.mean()).square().sum() / (n - 1)).sqrt()
        squares = (x * x).sum() / (n - 1)
        square = x.mean() ** 2 * (n / (n - 1))
        return (squares - square).clamp(min=0).sqrt()  # culprit: noise-of-a-microphone

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.std(block) for block in samples.split(self.block)])


def metered(centred: bool) -> torch.Tensor:
    """Sixteen blocks of a quiet room."""
    return Meter(128, centred)(2048 + 0.3 * normal(2048, seed=4491))


def turned_back(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Vectors of the world as a body sees them."""
    w, xyz = quaternion[:, :1], quaternion[:, 1:]
    t = 2 * torch.linalg.cross(xyz, vector)
    return vector - w * t + torch.linalg.cross(xyz, t)


class Walkers:
    """Many robots at once: those that have tilted too far begin again."""

    def __init__(self, count: int, safe: bool) -> None:
        heading = torch.linspace(0, 2 * math.pi, count)
        zero = torch.zeros_like(heading)
        self.quaternion = torch.stack([zero, heading.cos(), heading.sin(), zero], 1)
        self.down = torch.tensor([0.0, 0.0, -1.0]).expand(count, 3)
        self.safe = safe

    def tilt(self) -> torch.Tensor:
        upright = -turned_back(self.quaternion, self.down)[:, 2]
        if self.safe:
            upright = upright.clamp(-1, 1)
        return upright.acos()  # culprit: robot-on-its-back

    def step(self, rate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w, x, y, z = self.quaternion.unbind(1)
        turned = torch.stack([w - 0.5 * rate * z, x - 0.5 * rate * y, y + 0.5 * rate * x, z + 0.5 * rate * w], 1)
        self.quaternion = turned / turned.norm(dim=1, keepdim=True)
        tilt = self.tilt()
        return tilt, tilt > math.radians(70)


def walked(safe: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Tilts and falls of 64 robots that lie on their backs and spin."""
    robots, tilts, falls = Walkers(64, safe), [], []
    for step in range(4):
        tilt, fallen = robots.step(0.01 * normal(64, seed=4501 + step))
        tilts.append(tilt)
        falls.append(fallen.float())
    return torch.stack(tilts), torch.stack(falls)


class Controller:
    """A controller for six joints, which is done when its error has been small on average for a while."""

    def __init__(self, gain: float, length: int, sums: bool) -> None:
        self.gain, self.length, self.sums = gain, length, sums
        self.buffer: deque[torch.Tensor] = deque()
        self.total = torch.zeros(6)

    def calculate(self, error: torch.Tensor) -> torch.Tensor:
        self.buffer.append(error)
        self.total = self.total + error  # culprit: controller-that-never-arrives
        if len(self.buffer) > self.length:
            self.total = self.total - self.buffer.popleft()  # culprit: controller-that-never-arrives
        return self.gain * error

    def average(self) -> torch.Tensor:
        total = torch.stack(list(self.buffer)).sum(0) if self.sums else self.total
        return total / len(self.buffer)


def controlled(sums: bool) -> torch.Tensor:
    """Average errors of the last ten of sixty turns; the joints begin millions of ticks away."""
    error = 4e6 * (1 + uniform(6, seed=4511))
    controller, averages = Controller(0.35, 8, sums), []
    for _ in range(60):
        error = error - controller.calculate(error)
        averages.append(controller.average())
    return torch.stack(averages[-10:])


class Measurement:
    """Cells that have passed a camera: for each the frame and the time."""

    def __init__(self, frames: torch.Tensor, rate: float, wide: bool) -> None:
        time = frames.double() / rate
        self.time = time if wide else time.to(SINGLE)  # culprit: events-late-in-a-run

    def rates(self, window: int) -> torch.Tensor:
        """How many cells pass in a second, around each cell."""
        return window / (self.time[window:] - self.time[:-window])

    def plot(self, parts: int) -> torch.Tensor:
        return torch.stack([part.mean() for part in self.rates(8).chunk(parts)]).float()


def passed(wide: bool) -> torch.Tensor:
    """Rates of the last cells of a measurement of nine hours, at three thousand frames a second."""
    gaps = 1 + (3 * uniform(240, seed=4521)).long()
    return Measurement(100_000_000 + gaps.cumsum(0), 3000.0, wide).plot(12)


BUGS = (
    Bug("target-in-plain-units", "awslabs/gluonts#3070", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: forecast(wide=False), lambda: forecast(wide=True), precision="32-true"),
    Bug("spread-of-a-moving-window", "pydata/bottleneck#164", ("cancellation", "absorption", "amplified-rounding"), "aten.add.Tensor",
        lambda: moving(wide=False), lambda: moving(wide=True), precision="32-true"),
    Bug("carrier-just-off-centre", "gnuradio/gnuradio#3661", ("cancellation", "absorption", "accumulated-drift"), "aten.sub.Tensor",
        lambda: modulated(keeps=False), lambda: modulated(keeps=True), precision="32-true"),
    Bug("noise-of-a-microphone", "ARM-software/CMSIS_5#225", ("cancellation",), "aten.sub.Tensor",
        lambda: metered(centred=False), lambda: metered(centred=True), precision="32-true"),
    Bug("robot-on-its-back", "mujocolab/mjlab#1078", ("amplified-rounding", "nan"), "aten.acos.default",
        lambda: walked(safe=False), lambda: walked(safe=True), precision="32-true"),
    Bug("controller-that-never-arrives", "wpilibsuite/allwpilib#469", ("accumulated-drift", "cancellation", "absorption"), "aten.add.Tensor",
        lambda: controlled(sums=False), lambda: controlled(sums=True), precision="32-true"),
    Bug("events-late-in-a-run", "DC-analysis/dclab#204", ("cancellation", "amplified-rounding"), "aten._to_copy.default",
        lambda: passed(wide=False), lambda: passed(wide=True), precision="32-true"),
)  # fmt: skip
