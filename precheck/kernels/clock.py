"""How much of a budget is spent: seconds of the processor, as a machine that is not busy has them."""

from __future__ import annotations

import time

SLOWEST = 2.0
"""Seconds on the clock, at most, for one of the budget: a machine that others use gives as many trials, up to half its speed."""


class Clock:
    """Runs from when it is made. What another thread or a device computes is waited for, and counts as half."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.wall, self.processor = seconds, time.monotonic(), time.thread_time()

    def spent(self) -> float:
        """Seconds of the budget."""
        return max(time.thread_time() - self.processor, (time.monotonic() - self.wall) / SLOWEST)

    def left(self) -> float:
        """Seconds of the budget; below 0 where it is spent."""
        return self.seconds - self.spent()
