"""Ratios that hold on a noisy machine: all contestants in turn, round after round, and the median of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Protocol

from precheck.observe.timing.clocks import CpuClock

Call = Callable[[], object]


class Stopwatch(Protocol):
    def seconds(self, call: Call) -> float: ...


def medians(contestants: dict[str, Call], rounds: int, clock: Stopwatch | None = None) -> dict[str, float]:
    """Seconds of each, the first round left out as warm-up; every round begins with another."""
    clock = clock or CpuClock()
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(clock.seconds(contestants[name]))
    return {name: statistics.median(times[1:]) for name, times in taken.items()}
