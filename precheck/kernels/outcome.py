"""Adds to a report code for the smallest failing inputs, the speed of both sides on the example, and what was not looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from precheck.findings import Report
from precheck.input_search import literals
from precheck.kernels import memory, running
from precheck.kernels.bench import Bench
from precheck.kernels.examples import parameters
from precheck.kernels.session import SessionResult
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Trial
from precheck.kernels.work import Work
from precheck.observe.containers import call, tensors
from precheck.observe.job import InputError
from precheck.observe.timing.clocks import clock_for
from precheck.observe.timing.rounds import interleaved

_SMALL = (1, 2, 3, 4, 5, 7, 9, 13, 17, 33)
_PATIENCE = 2**27
"""The work of finding smaller inputs, in elements that the reference computes (see `work`)."""

_UPSTREAM = {
    "expanded": "expanded, as that of result.sum()", "transposed": "transposed, as that of (result.mT * weight).sum()",
    "partial": "that of one output alone",
}  # fmt: skip
"""Incoming gradients in words, and what gives them."""


def completed(report: Report, told: SessionResult, bench: Bench, whole: Bench, timed: bool | None) -> None:
    """Adds code for the failing trial's inputs, the speed on the given example, and what was not looked at, to the facts of a report.

    `timed`: whether both sides are timed; None: on a device alone.
    """
    if told.judged is not None and told.cause is not None:
        if told.judged.fault is not None and told.judged.fault.kind not in ("touched", "aliased", "overwritten", "unlike", "registered"):
            told.judged = shrunk(bench, told.judged)
        code = _code(bench, told.judged.trial)
        if code:
            report.facts["code"] = code
    on = whole.example.device
    missing = {}
    if "on another stream" not in told.looked:
        found_before = "no time was left, or a fault was found before"
        missing["another stream"] = found_before if on.type == "cuda" else f"only CUDA has streams here, and the example lies on {on}"
    if timed or (timed is None and on.type != "cpu"):
        found = speed(whole, max((row.r for row in report.boundaries), default=0.0))
        if isinstance(found, str):
            missing["speed"] = found
        else:
            report.facts["speed"] = found
    else:
        missing["speed"] = "it is measured where it is asked for: speed=True, or --speed" if timed is None else "speed=False"
    if missing:
        report.facts["not_looked_at"] = missing


def shrunk(bench: Bench, judged: Judged) -> Judged:
    """The same fault in the smallest sizes at which it occurs, one dimension after another."""
    trial, work = judged.trial.but(given=False), Work(bench)
    best = judged
    for name in bench.dimensions.sizes:
        for size in _SMALL:
            now = dict(best.trial.sizes).get(name, bench.dimensions.sizes[name])
            if size >= now or work.done > _PATIENCE:
                break
            sizes = tuple(sorted({**dict(best.trial.sizes if not best.trial.given else ()), name: size}.items()))
            taken = bench.takes(trial.but(sizes=sizes))
            found = None
            if taken is not None:
                work.note(taken)
                found = bench.judge(taken)
            if found is not None and found.fault is not None and judged.fault is not None and found.fault.kind == judged.fault.kind:
                best = found
                break
    return best


def _code(bench: Bench, trial: Trial) -> str:
    """Python code that rebuilds the inputs of a trial, or "" if it cannot be written."""
    made = bench.make(trial)
    if sum(each.numel() for each in made.values) > 4096:
        return ""
    try:
        return literals.code(bench.example.filled(made.values, made.numbers)) + _around(bench, trial)
    except InputError:
        return ""


def _around(bench: Bench, trial: Trial) -> str:
    """Comments on what the inputs alone do not show: how they lay in memory, and which gradient came in."""
    whose = "each x" if trial.laid < 0 else f"inputs{bench.example.leaves[trial.laid].path}, here x,"
    laid = f"# {whose} lay as {memory.LAYOUTS[trial.layout]}\n" if trial.layout in memory.LAYOUTS else ""
    return laid + (f"# the incoming gradient was {_UPSTREAM[trial.upstream]}\n" if trial.upstream in _UPSTREAM else "")


_ROUNDS = 3
"""The fewest timed calls of each side. The median counts."""
_TIMED_FOR = 2.0
"""Seconds for more of them."""


class TimedCall:
    """A side's call on the example, with its backward pass where gradients are compared."""

    held = 0

    def __init__(self, function: Callable[..., Any], bench: Bench) -> None:
        trial = Trial(given=True, fill="")
        made, self.function, self.wishes = bench.make(trial), function, bench.wishes_of(trial)
        wanted = self.wishes.gradients
        values = bench.example.placed(made.values)
        leaves = [each.requires_grad_(wanted and leaf.wanted) for leaf, each in zip(bench.example.leaves, values, strict=True)]
        weights = [each for _, each in parameters(function)] if wanted else []
        self.arguments, self.device = bench.example.filled(leaves, made.numbers), bench.example.device
        self.asked = [each for each in (*leaves, *weights) if each.requires_grad]
        self.upstream: list[torch.Tensor] = []

    def calibrated(self) -> bool:
        """Nothing is calibrated: it has no loss scale."""
        return True

    @contextlib.contextmanager
    def placed(self) -> Any:
        """Products have the formats of the precision inside."""
        with self.wishes.precision.step(self.device.type) if self.wishes.precision else contextlib.nullcontext():
            yield

    def step(self) -> None:
        """One call. Incoming gradients are made by the first one."""
        with torch.set_grad_enabled(bool(self.asked)), running.surroundings(self.wishes, self.device):
            results = [each for _, each in tensors(call(self.function, self.arguments)) if each.requires_grad]
        if results:
            self.upstream = self.upstream or [torch.ones_like(each) for each in results]
            torch.autograd.grad(results, self.asked, self.upstream, allow_unused=True)


def speed(bench: Bench, r: float) -> dict[str, Any] | str:
    """Milliseconds and peak bytes of a call on the example for both sides, beside `r`, the largest error. Or why they cannot be told."""
    try:
        sides = [TimedCall(function, bench) for function in (bench.candidate, bench.reference)]
        clock = clock_for(bench.example.device)
        candidate, reference = interleaved(sides, clock, min_rounds=_ROUNDS, max_time=_TIMED_FOR)
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
