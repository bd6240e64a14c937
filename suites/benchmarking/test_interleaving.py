"""Rounds: who runs when, how often, and what does not count, with a clock that is told what to say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from precheck.observe.timing.contestant import Contestant
from precheck.observe.timing.rounds import CALIBRATING, MOST_ROUNDS, interleaved


class Clock:
    """Each step takes what its contestant says; peaks are ten bytes."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def seconds(self, call: Callable[[], object]) -> float:
        taken = cast(float, call())
        self.order.append(str(Runner.on))
        return taken

    def peak(self, call: Callable[[], object]) -> int:
        self.order.clear()  # what came before was warm-up
        call()
        return 10

    def facts(self) -> dict[str, Any]:
        return {"device": "toy"}


class Runner:
    on: str | None = None  # whose weights lie under the model

    def __init__(self, name: str, *, seconds: float, held: int = 0, settles: int = 1) -> None:
        self.name, self.taken, self.held, self.settles = name, seconds, held, settles
        self.calibrations = self.steps = 0

    def calibrated(self) -> bool:
        self.calibrations += 1
        return self.calibrations >= self.settles

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        assert Runner.on is None
        Runner.on = self.name
        yield
        Runner.on = None

    def step(self) -> float:
        assert Runner.on == self.name
        self.steps += 1
        return self.taken


def run(*runners: Runner, min_rounds: int = 3, max_time: float = 0.0) -> tuple[Clock, list[Any]]:
    clock = Clock()
    return clock, interleaved(cast("list[Contestant]", list(runners)), clock, min_rounds=min_rounds, max_time=max_time)


def test_every_round_has_all_of_them_and_begins_with_another() -> None:
    clock, timings = run(Runner("a", seconds=1.0), Runner("b", seconds=2.0), Runner("c", seconds=3.0))
    assert clock.order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [timing.seconds for timing in timings] == [(1.0,) * 3, (2.0,) * 3, (3.0,) * 3]


@pytest.mark.parametrize(("max_time", "rounds"), [(0.0, 3), (0.5, 3), (3.75, 10), (1e9, MOST_ROUNDS)])
def test_there_are_as_many_rounds_as_the_time_allows_for_all_together(max_time: float, rounds: int) -> None:
    _, timings = run(Runner("a", seconds=0.125), Runner("b", seconds=0.25), max_time=max_time)
    assert {len(timing.seconds) for timing in timings} == {rounds}


def test_one_slow_round_does_not_move_the_median() -> None:
    runner = Runner("a", seconds=0.1)
    taken = iter([0.1, 9.0, *([0.1] * 100)])
    runner.step = lambda: next(taken)  # type: ignore[method-assign]
    _, (timing,) = run(runner)
    assert timing.median == 0.1


def test_a_loss_scale_comes_down_before_anything_counts_and_one_that_never_settles_is_given_up() -> None:
    settling, never = Runner("a", seconds=0.1, settles=16), Runner("b", seconds=0.1, settles=10**6)
    run(settling, never)
    assert (settling.calibrations, never.calibrations) == (16, CALIBRATING)


def test_fast_steps_are_warmed_up_for_longer() -> None:
    fast, slow = Runner("a", seconds=0.001), Runner("b", seconds=1.0)
    run(fast, slow)
    # beside the three rounds and the step that is weighed: 25 ms of steps, or one more than the first
    assert (fast.steps - 4, slow.steps - 4) == (25, 1)


def test_memory_is_what_stays_and_the_peak_beyond_it() -> None:
    _, timings = run(Runner("a", seconds=0.1, held=5), Runner("b", seconds=0.1, held=7))
    assert [timing.memory for timing in timings] == [15, 17]
