"""The budget of one example, in trials and in processor seconds, of which a busy machine has as many as an idle one. And sets threads."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

WAITING = 2.0
"""Seconds of waiting for a device or for another thread that count as one second of the budget."""
_STEEP = 2.0
"""The power of a size with which its cost is assumed to grow, as for attention, while two sizes have not shown another one."""
_CHEAP = 0.02
"""Seconds of a trial below which the growth of its cost is ignored."""
USUAL = 20.0
"""Seconds of a budget for which nobody gave any limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """The most seconds and the most trials of one example. Without a limit in seconds, the trials that are made depend on no clock."""

    seconds: float = USUAL
    trials: float = math.inf


def budgeted(seconds: float | None, trials: int | None) -> Budget:
    """The budget that a user means by these arguments: `USUAL` seconds if there is neither, and no limit in seconds where only trials are given."""
    return Budget((USUAL if trials is None else math.inf) if seconds is None else seconds, math.inf if trials is None else trials)


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


class Costs:
    """How the seconds of a trial have grown with each size so far."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float, float]] = {}  # by dimension: the largest size, its seconds, the power with which they grow

    def fits(self, sizes: Iterable[tuple[str, int]], left: float) -> bool:
        """Whether a trial in these sizes is likely to take no more than a third of the seconds that are left."""
        for name, size in sizes:
            before, seconds, steep = self._last.get(name, (0, 0.0, _STEEP))
            if seconds > _CHEAP and before and seconds * (max(size, 1) / before) ** steep > left / 3:
                return False
        return True

    def note(self, sizes: Sequence[tuple[str, int]], seconds: float) -> None:
        """Learns from what a trial in these sizes took. A trial of several sizes tells nothing of one."""
        if len(sizes) == 1:
            name, size = sizes[0]
            before, last, steep = self._last.get(name, (0, 0.0, _STEEP))
            if last > _CHEAP and size >= 2 * before:
                steep = max(math.log(max(seconds, last) / last, size / before), 1.0)
            if size >= before:
                self._last[name] = size, seconds, steep


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
