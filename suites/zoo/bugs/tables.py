"""Tables: sums by a telephone's chip, bins of equal width, shares of a row, times of a receiver, ages of prices."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class Reducer:
    """Sums numbers as a chip does that has eight lanes, each of which adds in its own register."""

    def __init__(self, kind: torch.dtype, lanes: int = 8) -> None:
        self.kind, self.lanes = kind, lanes

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        register = torch.zeros(self.lanes, dtype=self.kind)
        for eight in numbers.view(-1, self.lanes).to(self.kind):
            register = register + eight  # culprit: mean-by-eight-lanes
        return wider(register).sum()


def means(kind: torch.dtype) -> torch.Tensor:
    """The mean of each of three activations, which begin with a token that is large. Half is missing."""
    rest = 0.3 + 1.4 * uniform(3, 2392, seed=61)
    large = torch.full((3, 8), 4300.0)
    many = rest.shape[1]
    return torch.stack([(Reducer(kind).total(torch.cat([first, each])) - 8 * 4300) / many for first, each in zip(large, rest, strict=True)])


class Discretizer:
    """Puts numbers into bins of one width between the least and the greatest that it has seen."""

    def __init__(self, bins: int) -> None:
        self.bins = bins

    def fit(self, column: torch.Tensor) -> None:
        low, high = column.min(), column.max()
        width = (high - low) / self.bins
        edges = [low]
        for _ in range(self.bins):
            edges.append(edges[-1] + width)  # culprit: greatest-of-a-column
        self.edges = torch.stack(edges)

    def transform(self, column: torch.Tensor) -> torch.Tensor:
        """A one for the bin of each number. The last bin has its upper edge too."""
        place = torch.searchsorted(self.edges, column, right=True) - 1
        place = torch.where(column == self.edges[-1], self.bins - 1, place)  # culprit: greatest-of-a-column
        return (place[:, None] == torch.arange(self.bins)).to(column.dtype)


def encoded(kind: torch.dtype, bins: int = 11) -> torch.Tensor:
    """How many of sixty numbers are in each bin, a sixth of which are the greatest. These are in none."""
    column = (0.1 + 0.7 * uniform(60, seed=62)).to(kind)
    column[:2] = torch.tensor([0.1, 0.9], dtype=kind)
    column[50:] = 0.9
    discretizer = Discretizer(bins)
    discretizer.fit(column)
    return discretizer.transform(column).sum(0)


class Graph:
    """Which features of a model a later one comes from, as shares."""

    def __init__(self, effects: torch.Tensor) -> None:
        self.effects = effects

    def shares(self) -> torch.Tensor:
        return self.effects / self.effects.abs().sum(-1, keepdim=True).clamp_min(1e-10)  # culprit: shares-of-many-features

    def influence(self, last: torch.Tensor, turns: int = 3) -> torch.Tensor:
        """How much each feature has to do with the last ones, at most so many features apart."""
        shares, seen = self.shares().abs(), last
        for _ in range(turns):
            last = last @ shares
            seen = seen + last
        return seen


def traced(kind: torch.dtype) -> torch.Tensor:
    """How much 900 features have to do with the first. None has."""
    effects = (4e36 * normal(900, 900, seed=63)).to(kind)
    first = torch.zeros(900, dtype=kind)
    first[0] = 1.0
    return Graph(effects).influence(first)[1:]


class Receiver:
    """Reads a satellite receiver's lines, in which a time is written as hours, minutes and seconds in one number."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind

    def seconds(self, stamps: list[str]) -> torch.Tensor:
        number = torch.tensor([float(each) for each in stamps], dtype=self.kind)  # culprit: seconds-of-a-receiver
        hours = torch.floor(number / 10000)
        minutes = torch.floor((number - 10000 * hours) / 100)
        return 3600 * hours + 60 * minutes + (number - 10000 * hours - 100 * minutes)  # culprit: seconds-of-a-receiver


def speeds(kind: torch.dtype) -> torch.Tensor:
    """The speed of a boat at fifty moments, twenty a second. It jumps."""
    stamps = [f"1841{5.05 + 0.05 * each:05.2f}" for each in range(51)]
    seconds = Receiver(kind).seconds(stamps)
    way = (0.4 + 0.01 * torch.sin(torch.arange(50) / 9)).to(kind)
    return way / seconds.diff().clamp_min(0.01)  # culprit: seconds-of-a-receiver


class Ticker:
    """A price with the moment at which it came."""

    def __init__(self, price: float, milliseconds: int, kind: torch.dtype) -> None:
        self.price = torch.tensor(price, dtype=kind)
        self.seconds = torch.tensor(milliseconds / 1000, dtype=kind)  # culprit: ages-of-prices


def weighed(kind: torch.dtype, now: int = 1_516_771_245_000) -> torch.Tensor:
    """A price of a minute, in which newer ones weigh more, for ten minutes. It is that of any of them."""
    told = []
    for minute in range(10):
        steps = (1 + 0.1 * normal(12, seed=70 + minute)).cumsum(0)
        tickers = [Ticker(100.0 + float(step), now + 60_000 * minute - 5000 * (11 - each), kind) for each, step in enumerate(steps)]
        ages = torch.tensor((now + 60_000 * minute) / 1000, dtype=kind) - torch.stack([each.seconds for each in tickers])  # culprit: ages-of-prices
        weights = torch.exp(-ages / 20)
        told.append((weights * torch.stack([each.price for each in tickers])).sum() / weights.sum() - 100)
    return torch.stack(told)


BUGS = (
    Bug("mean-by-eight-lanes", "cactus-compute/cactus#344", ("absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: means(HALF), lambda: means(SINGLE)),
    Bug("greatest-of-a-column", "featrs/featrs#140", ("decision-flip", "accumulated-drift", "amplified-rounding"), "aten.eq.Tensor",
        lambda: encoded(SINGLE), lambda: encoded(DOUBLE), precision="32-true",
        expected_miss="the last edge is right to a rounding, and so is the greatest number, which lies beyond it, as comparing them shows"),
    Bug("shares-of-many-features", "decoderesearch/circuit-tracer#97", ("overflow",), "aten.sum.dim_IntList",
        lambda: traced(SINGLE), lambda: traced(DOUBLE), precision="32-true"),
    Bug("seconds-of-a-receiver", "adafruit/Adafruit_CircuitPython_GPS#75", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: speeds(SINGLE), lambda: speeds(DOUBLE), precision="32-true"),
    Bug("ages-of-prices", "knowm/XChange#2219", ("integer-rounding", "cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: weighed(SINGLE), lambda: weighed(DOUBLE), precision="32-true"),
)  # fmt: skip
