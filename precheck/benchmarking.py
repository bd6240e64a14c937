"""The verb `benchmark`: reports speed, memory and error of a model under each precision, one row for each.

First each precision's error is measured against float32. Then float32 and all precisions take plain steps in turn. The timed code is the user's own
modules, without any code of precheck.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precheck import arguments, interrupts
from precheck.findings import Report
from precheck.measurement import Measurement, job_of
from precheck.observe.job import InputError, Job
from precheck.observe.timing.clocks import Clock, clock_for, device_of
from precheck.observe.timing.contestant import Contestant, borrowed
from precheck.observe.timing.rounds import Timing, interleaved
from precheck.precisions import Precision, resolve
from precheck.words import digits

BASELINE = "32-true"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The cost and the error of one precision: median `seconds` and peak `memory` (bytes) of a step, ratios to float32, and the worst r.

    `r` is that of the boundary nearest to its limit `allowed`, as `measure` finds it. `errors` are the rules by which a check would fail.
    Times and memory are None where the device lacks the format, since those of the emulation say nothing about the format.
    """

    precision: str
    seconds: float | None = None
    memory: int | None = None
    speedup: float | None = None
    memory_share: float | None = None
    r: float | None = None
    allowed: float | None = None
    errors: tuple[str, ...] = ()
    rounds: tuple[float, ...] = dataclasses.field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.precision}: {self._cost()}, {self._error()}"

    def _cost(self) -> str:
        if self.speedup is None or self.memory_share is None:
            return "emulated here, so neither timed nor weighed"
        slower = self.speedup < 1
        ratio = _digits(1 / self.speedup if slower else self.speedup)
        speed = "as fast" if ratio == "1.0" else f"{ratio}× {'slower' if slower else 'faster'}"
        return f"{speed}, {self.memory_share:.2f}× memory"

    def _error(self) -> str:
        r = "r not determined" if self.r is None else f"r = {_digits(self.r)}"
        return r + "".join(f", fails by {rule}" for rule in self.errors)


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """The rows of one benchmark. `benchmark["bf16-mixed"]` is a row.

    Attributes:
        baseline: The row of float32.
        rows: The rows of the precisions, in the order of the argument.
        facts: The device on which they were measured, and the version of torch.
    """

    baseline: Row
    rows: tuple[Row, ...]
    facts: dict[str, Any]

    def __getitem__(self, precision: str) -> Row:
        name = resolve(precision).name
        for row in (self.baseline, *self.rows):
            if row.precision == name:
                return row
        raise KeyError(f"{name} was not benchmarked; {', '.join(row.precision for row in (self.baseline, *self.rows))} were")

    def summary(self) -> str:
        """The rows as lines of text. The first line describes the float32 baseline."""
        base = self.baseline
        assert base.seconds is not None
        assert base.memory is not None
        head = f"beside {base.precision} on {self.facts['device']}: {in_seconds(base.seconds)} and {in_bytes(base.memory)} a step"
        return "\n".join([f"{head}, median of {len(base.rounds)} interleaved rounds", *(f"  {row}" for row in self.rows)])

    def to_json(self) -> str:
        """The whole benchmark as JSON, including the seconds of each round."""
        return json.dumps(dataclasses.asdict(self), indent=1)


@arguments.explained
@interrupts.held()
def benchmark(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    precisions: Sequence[str | Precision] = ("bf16-mixed", "bf16-true", "16-mixed"),
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    seed: int = 0,
    min_rounds: int = 5,
    max_time: float = 1.0,
) -> Benchmark:
    """Speed, memory and error of `model` under each of `precisions`, beside float32.

    A step is forward, loss, backward and update, as far as they are given; without a loss, a forward pass under no_grad. Each step starts from
    the model's weights as they are and the same random numbers. The precisions take turns; the first steps of each do not count. On
    CUDA, events measure the time of a step, and the second-level cache is flushed before it. On a CPU, the speed is that of the CPU's own
    autocast, and the error is that of CUDA's list of ops.

    Args:
        model: As in `measure`, and so are `inputs`, `loss`, `optimizer` and `seed`.
        precisions: Names or `precheck.Precision`; float32 is always there.
        min_rounds: Steps of each precision that count, at least.
        max_time: Seconds for all precisions together, once each has its `min_rounds`.

    Returns:
        A row for each precision: median seconds, bytes at the peak (weights and optimizer included), both as ratios to float32, and r.
        The model is bit for bit as it was; CUDA's statistics of peak memory are reset.

    Raises:
        InputError: As `measure`.
        PrecisionError: As `measure`.
    """
    job = job_of(model, inputs, loss=loss, optimizer=optimizer, seed=seed)
    chosen = _chosen(precisions, min_rounds, max_time)
    clock = clock_for(device_of(job))
    errors = [Measurement(job, precision).report() for precision in chosen]
    base, *timings = _timed(job, [resolve(BASELINE), *chosen], clock, min_rounds=min_rounds, max_time=max_time)
    assert base is not None
    rows = [_row(precision, timing, base, report) for precision, timing, report in zip(chosen, timings, errors, strict=True)]
    return Benchmark(Row(BASELINE, base.median, base.memory, 1.0, 1.0, rounds=base.seconds), tuple(rows), clock.facts())


def _chosen(precisions: Sequence[str | Precision], min_rounds: int, max_time: float) -> list[Precision]:
    if isinstance(precisions, str):
        raise InputError(f'precisions={precisions!r} is one word; pass a list of names, as in precisions=["{precisions}"]')
    if isinstance(min_rounds, bool) or not isinstance(min_rounds, int) or min_rounds < 1:
        raise InputError(f"min_rounds={min_rounds!r}; pass a whole number from 1")
    if isinstance(max_time, bool) or not isinstance(max_time, (int, float)) or not 0 <= max_time < float("inf"):
        raise InputError(f"max_time={max_time!r}; pass seconds, as in max_time=1.0")
    named = {precision.name: precision for precision in map(resolve, precisions)}
    named.pop(BASELINE, None)  # the baseline is always included
    if not named:
        raise InputError(f'precisions={list(precisions)!r} names none to hold beside {BASELINE}; pass some, as in precisions=["bf16-mixed"]')
    return list(named.values())


def _timed(job: Job, precisions: list[Precision], clock: Clock, *, min_rounds: int, max_time: float) -> list[Timing | None]:
    """One timing for each precision; None for those that are emulated on this device."""
    with borrowed(job):
        contestants = [Contestant(job, precision) for precision in precisions]
        real = [contestant for contestant in contestants if not contestant.emulated]
        found = dict(zip(map(id, real), interleaved(real, clock, min_rounds=min_rounds, max_time=max_time), strict=True))
        return [found.get(id(contestant)) for contestant in contestants]


def _row(precision: Precision, timing: Timing | None, base: Timing, report: Report) -> Row:
    worst = report.worst
    rules = tuple(dict.fromkeys(finding.rule for finding in report.errors))
    row = Row(precision.name, r=worst.r if worst else None, allowed=worst.allowed if worst else None, errors=rules)
    if timing is None:
        return row
    return dataclasses.replace(
        row,
        seconds=timing.median,
        memory=timing.memory,
        speedup=base.median / timing.median,
        memory_share=timing.memory / max(1, base.memory),
        rounds=timing.seconds,
    )


def _digits(number: float) -> str:
    return f"{number:.1f}" if number < 99.95 else digits(number, 3)


def in_seconds(seconds: float) -> str:
    """Seconds as text, as in "12.3 ms": three digits, in s, ms or µs."""
    scale, unit = next(((scale, unit) for scale, unit in ((1.0, "s"), (1e3, "ms")) if seconds * scale >= 1), (1e6, "µs"))
    return f"{digits(seconds * scale, 3)} {unit}"


def in_bytes(count: float) -> str:
    """Bytes as text, as in "4.1 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{digits(count, 3)} {unit}"
        count /= 1024
    return f"{digits(count, 3)} GiB"
