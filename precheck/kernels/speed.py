"""Times a kernel and its reference on the example, for a row with speed beside error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.examples import parameters
from precheck.kernels.trials import Trial
from precheck.observe.containers import call, tensors
from precheck.observe.job import InputError
from precheck.observe.timing.clocks import clock_for
from precheck.observe.timing.rounds import interleaved

_ROUNDS = 3
"""The fewest timed calls of each side. The median counts."""
_PATIENCE = 2.0
"""Seconds for more of them."""


class TimedCall:
    """A side's call on the example, with its backward pass where gradients are compared."""

    held = 0

    def __init__(self, function: Callable[..., Any], bench: Bench) -> None:
        trial = Trial(given=True, fill="")
        made, self.function, self.wishes = bench.make(trial), function, bench.wishes_of(trial)
        wanted = self.wishes.gradients
        leaves = [each.requires_grad_(wanted and leaf.wanted) for leaf, each in zip(bench.example.leaves, made.values, strict=True)]
        weights = [each for _, each in parameters(function)] if wanted else []
        self.arguments, self.values = bench.example.filled(leaves, made.numbers), made.values
        self.asked = [each for each in (*leaves, *weights) if each.requires_grad]
        self.upstream: list[torch.Tensor] = []

    def calibrated(self) -> bool:
        """Nothing is calibrated: it has no loss scale."""
        return True

    @contextlib.contextmanager
    def placed(self) -> Any:
        """Products have the formats of the precision inside."""
        with self.wishes.precision.step(device_of(self.values).type) if self.wishes.precision else contextlib.nullcontext():
            yield

    def step(self) -> None:
        """One call. Incoming gradients are made by the first one."""
        with torch.set_grad_enabled(bool(self.asked)), running.autocast(self.wishes, self.values):
            results = [each for _, each in tensors(call(self.function, self.arguments)) if each.requires_grad]
        if results:
            self.upstream = self.upstream or [torch.ones_like(each) for each in results]
            torch.autograd.grad(results, self.asked, self.upstream, allow_unused=True)


def device_of(values: list[torch.Tensor]) -> torch.device:
    """The device of the tensors. A CPU counts only where there is no other."""
    return next((each.device for each in values if each.device.type != "cpu"), torch.device("cpu"))


def speed(bench: Bench, r: float) -> dict[str, Any] | str:
    """Milliseconds and peak bytes of a call on the example for both sides, beside `r`, the largest error. Or why they cannot be told."""
    try:
        sides = [TimedCall(function, bench) for function in (bench.candidate, bench.reference)]
        clock = clock_for(device_of(sides[0].values))
        candidate, reference = interleaved(sides, clock, min_rounds=_ROUNDS, max_time=_PATIENCE)
    except InputError as error:
        return str(error)
    except Exception as error:  # the candidate's own
        return f"on the example it raises {type(error).__name__}"
    return {
        "device": clock.facts()["device"], "passes": "forward and backward" if sides[1].upstream else "forward",
        "candidate_ms": round(1000 * candidate.median, 4), "reference_ms": round(1000 * reference.median, 4),
        "times_as_fast": round(reference.median / max(candidate.median, 1e-9), 3),
        "candidate_bytes": candidate.memory, "reference_bytes": reference.memory, "rounds": len(candidate.seconds), "r": r,
    }  # fmt: skip
