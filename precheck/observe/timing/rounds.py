"""Times contestants in turn, round by round, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from precheck.observe.timing.clocks import Clock

WARM_STEPS, WARM_SECONDS = 2, 0.025
"""Warm-up. The first step makes the optimizer's state and selects kernels. 25 ms, as in do_bench, bring a device up to speed."""
CALIBRATING = 20
"""Most steps for a loss scale to fall to what the gradients allow. From 65536 to 1 it takes 16."""
MOST_ROUNDS = 1000


class Contestant(Protocol):
    """What is timed: `contestant.Contestant` for a training step. `step` runs inside `placed`. `held`: bytes that stay allocated between steps."""

    @property
    def held(self) -> int: ...
    def calibrated(self) -> bool: ...
    def placed(self) -> AbstractContextManager[None]: ...
    def step(self) -> object: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The cost of a contestant's step: `seconds` of each round, and the peak `memory` in bytes, including what stays allocated between steps."""

    seconds: tuple[float, ...]
    memory: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleaved(contestants: Sequence[Contestant], clock: Clock, *, min_rounds: int, max_time: float) -> list[Timing]:
    """Times every contestant once in each round. Each round begins with another one. Takes `max_time` seconds, but at least `min_rounds` rounds."""
    for contestant in contestants:
        _warm(contestant, clock)
    peaks = [_peak(contestant, clock) for contestant in contestants]
    taken: list[list[float]] = [[] for _ in contestants]
    rounds, done = min_rounds, 0
    while done < rounds:
        for place in range(len(contestants)):
            turn = (place + done) % len(contestants)
            taken[turn].append(_timed(contestants[turn], clock))
        done += 1
        if done == min_rounds:  # the time of a round is known now
            each = sum(statistics.median(seconds) for seconds in taken)
            rounds = max(min_rounds, min(MOST_ROUNDS, int(max_time / each) if each > 0 else MOST_ROUNDS))
    return [Timing(tuple(seconds), peak) for seconds, peak in zip(taken, peaks, strict=True)]


def _warm(contestant: Contestant, clock: Clock) -> None:
    for _ in range(CALIBRATING):
        if contestant.calibrated():
            break
    steps, seconds = 1, 0.0
    while steps < WARM_STEPS or (seconds < WARM_SECONDS and steps < MOST_ROUNDS):
        seconds += _timed(contestant, clock)
        steps += 1


def _timed(contestant: Contestant, clock: Clock) -> float:
    with contestant.placed():
        return clock.seconds(contestant.step)


def _peak(contestant: Contestant, clock: Clock) -> int:
    with contestant.placed():
        return contestant.held + clock.peak(contestant.step)
