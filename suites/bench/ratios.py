"""Ratios that hold on a noisy machine: all contestants in turn, round after round, and the median of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, the first round left out as warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}
