"""Measures the used time of a budget in processor seconds, so that a busy machine makes as many trials as an idle one."""

from __future__ import annotations

import time

SLOWEST = 2.0
"""Wall-clock seconds, at most, for one second of the budget. A busy machine makes as many trials down to half its speed."""


class Clock:
    """Starts when it is made. Work of another thread or a device is waited for, and counts half."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.wall, self.processor = seconds, time.monotonic(), time.thread_time()

    def spent(self) -> float:
        """Seconds of the budget that are used."""
        return max(time.thread_time() - self.processor, (time.monotonic() - self.wall) / SLOWEST)

    def left(self) -> float:
        """Seconds of the budget that are left. Negative if it is exceeded."""
        return self.seconds - self.spent()
