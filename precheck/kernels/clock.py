"""Measures the used time of a budget in processor seconds, so that a busy machine makes as many trials as an idle one. And sets threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

WAITING = 2.0
"""Seconds of waiting for a device or for another thread that count as one second of the budget."""


class Clock:
    """Starts when it is made. Time in which the processor worked for other programs does not count, where the system tells how long that was."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.wall, self.processor = seconds, time.monotonic() - queued(), time.thread_time()

    def spent(self) -> float:
        """Seconds of the budget that are used."""
        return max(time.thread_time() - self.processor, (time.monotonic() - queued() - self.wall) / WAITING)

    def left(self) -> float:
        """Seconds of the budget that are left. Negative if it is exceeded."""
        return self.seconds - self.spent()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """A block in which an operation of torch uses so many threads. A thread that waits for another one, which waits for a processor, counts as busy.
    So trials have one thread each: with two, a sixteenth as many were made on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def queued() -> float:
    """Seconds for which this thread could have run, and waited for a processor. 0 where the system does not tell, as outside Linux."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0
