"""Registers of events: the last of a run, times between decays, rare processes, grey levels, layers that wake, visits beside a date."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

SINGLE, DOUBLE = torch.float32, torch.float64


class Histogram:
    """Weights of events in bins of one width, of which the last takes the greatest event as well."""

    def __init__(self, events: torch.Tensor, bins: int) -> None:
        self.low, self.bins = events.min(), bins
        self.high = torch.tensor(math.nextafter(float(events.max()), math.inf), dtype=events.dtype)  # culprit: last-event-of-a-run

    def fill(self, events: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        inside = (events >= self.low) & (events < self.high)  # culprit: last-event-of-a-run
        place = ((events - self.low) / (self.high - self.low) * self.bins).long().clamp(0, self.bins - 1)
        return torch.zeros(self.bins, dtype=weights.dtype).index_add_(0, place, torch.where(inside, weights, torch.zeros_like(weights)))


def counted(kind: torch.dtype, events: int = 40) -> torch.Tensor:
    """The weights of forty events in ten bins. That of the last event is nowhere."""
    heights = uniform(events, seed=4).to(kind)
    heights[-1] = 1.3
    return Histogram(heights, 10).fill(heights, 0.5 + uniform(events, seed=5).to(kind))


class Source:
    """Decays at even chances between two moments, which are nanoseconds since 1970."""

    def __init__(self, start: int, kind: torch.dtype) -> None:
        self.start, self.kind = start, kind

    def times(self, count: int, seconds: float) -> torch.Tensor:
        spread = (1e9 * seconds * uniform(count, seed=6).double()).sort().values
        return (self.start + spread).to(self.kind)  # culprit: times-between-decays


def gaps(kind: torch.dtype, count: int = 200) -> torch.Tensor:
    """How many seconds are between decays within an hour. Garbage."""
    times = Source(1_600_000_000_000_000_000, kind).times(count, 3600.0)
    return times.diff() / 1e9  # culprit: times-between-decays


class Process:
    """The square of the sum of amplitudes of two diagrams, one of which is rare."""

    def __init__(self, coupling: float, kind: torch.dtype) -> None:
        self.coupling, self.kind = coupling, kind

    def amplitude(self, momenta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = self.coupling / (momenta.square().sum(-1) + 1.0)
        return scale * momenta[..., 0].cos(), scale * momenta[..., 1].sin()

    def weight(self, momenta: torch.Tensor) -> torch.Tensor:
        real, imaginary = self.amplitude(momenta.to(self.kind))
        return real * real + imaginary * imaginary  # culprit: weights-of-a-rare-process


def unweighted(kind: torch.dtype) -> torch.Tensor:
    """How often each of a hundred events is to be taken, as a share of the mean. The weights have few bits, or none."""
    weights = Process(2e-22, kind).weight(normal(100, 4, seed=7))
    return weights / weights.mean()


class Axis:
    """An axis of bins of one width, as a histogram has it for any kind of number."""

    def __init__(self, low: float, high: float, bins: int, kind: torch.dtype) -> None:
        self.low, self.width, self.bins, self.kind = torch.tensor(low, dtype=kind), torch.tensor(high - low, dtype=kind), bins, kind

    def index(self, numbers: torch.Tensor) -> torch.Tensor:
        share = (numbers.to(self.kind) - self.low) / self.width
        return (share * self.bins).long()  # culprit: bins-of-grey-levels


def levels(kind: torch.dtype, low: int = 16, high: int = 801) -> torch.Tensor:
    """How many pixels have each grey level, in as many bins as there are levels. Some bins are empty and others have too many."""
    grey = torch.arange(low, high).repeat(3)
    axis = Axis(float(low), float(high), high - low, kind)
    return torch.zeros(high - low).index_add_(0, axis.index(grey), torch.ones(len(grey)))


class Layer:
    """Holds what it has seen, and takes up its input whenever its period is over."""

    def __init__(self, period: float, start: float, kind: torch.dtype) -> None:
        self.period, self.next = torch.tensor(period, dtype=kind), torch.tensor(start + period, dtype=kind)
        self.held = torch.zeros(5)

    def update(self, time: torch.Tensor, seen: torch.Tensor) -> None:
        due = time >= self.next
        self.held = torch.where(due, 0.7 * self.held + seen, self.held)
        self.next = torch.where(due, self.next + self.period, self.next)


def woken(kind: torch.dtype, start: float = 16_777_200.0, turns: int = 60) -> torch.Tensor:
    """What a layer holds that is to wake in each third turn, after four hours and a half. It sleeps on."""
    time, layer = torch.tensor(start, dtype=kind), Layer(3.0, start, kind)
    for turn in range(turns):
        time = time + 1  # culprit: layer-that-should-wake
        layer.update(time, uniform(5, seed=turn))
    return layer.held


class Visits(nn.Module):
    """How much a visitor likes a thing, by a sum of what is learnt of both and of the numbers of a visit, each times a vector of its own."""

    def __init__(self, numbers: int, kind: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.things, self.numbers = nn.Embedding(30, 12), nn.Parameter(0.05 * torch.randn(numbers, 12))
        self.head = nn.Parameter(torch.randn(12))
        self.to(kind)

    def forward(self, thing: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        fields = torch.cat([(numbers[..., None] * self.numbers), self.things(thing)[:, None]], 1)
        return fields.sum(1) @ self.head  # culprit: likes-beside-a-date


def liked(kind: torch.dtype, date: float = 1_638_166_000.0) -> torch.Tensor:
    """By how much thirty things are liked more than the first, by a visitor of today. They are liked alike."""
    model, things = Visits(2, kind), torch.arange(30)
    told = model(things, torch.tensor([[date, 3.0]], dtype=kind).expand(30, 2)).detach()
    return wider(told - told[0])  # culprit: likes-beside-a-date


BUGS = (
    Bug("last-event-of-a-run", "scipp/scipp#3063", ("decision-flip", "amplified-rounding", "absorption"), "aten._to_copy.default",
        lambda: counted(SINGLE), lambda: counted(DOUBLE), precision="32-true",
        expected_miss="the bound is right to a rounding, and so is the event; float32 has no number between them, as comparing them shows"),
    Bug("times-between-decays", "FlamTeam/flamedisx#90", ("integer-rounding", "cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: gaps(SINGLE), lambda: gaps(DOUBLE), precision="32-true"),
    Bug("weights-of-a-rare-process", "madgraph5/madgraph4gpu#831", ("underflow",), "aten.mul.Tensor",
        lambda: unweighted(SINGLE), lambda: unweighted(DOUBLE), precision="32-true"),
    Bug("bins-of-grey-levels", "boostorg/histogram#336", ("integer-rounding", "decision-flip"), "aten.mul.Tensor",
        lambda: levels(SINGLE), lambda: levels(DOUBLE), precision="32-true",
        expected_miss="numbers on the bounds of bins fall into either bin by a rounding, in float64 as well; that all are right there is luck"),
    Bug("layer-that-should-wake", "PetaVision/OpenPV#116", ("decision-flip", "absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: woken(SINGLE), lambda: woken(DOUBLE), precision="32-true"),
    Bug("likes-beside-a-date", "RUCAIBox/RecBole#1062", ("amplified-rounding", "cancellation", "absorption"),
        "aten.sum.dim_IntList or aten.mv.default",
        lambda: liked(SINGLE), lambda: liked(DOUBLE), precision="32-true",
        note="the weights and the processor decide which of the two rounds more; a rounding of torch's own Linear would be a warning"),
)  # fmt: skip
