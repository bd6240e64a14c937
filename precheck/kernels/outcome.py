"""Adds to a report code for the smallest failing inputs, and the speed of both sides."""

from __future__ import annotations

import time
from typing import Any

from precheck.findings import Report
from precheck.hunt import literals
from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.session import SessionResult
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Trial
from precheck.observe.job import InputError

_TURNS = 5
"""The number of timed calls of each side, alternating. The median counts."""
_SMALL = (1, 2, 3, 4, 5, 7, 9, 13, 17, 33)
_PATIENCE = 3.0
"""Seconds for finding smaller inputs, and for timing after its first turn."""


def completed(report: Report, told: SessionResult, bench: Bench, whole: Bench) -> None:
    """Adds code for the failing trial's inputs, and the speed on the given example, to the facts of a report."""
    if told.judged is not None and told.cause is not None:
        if told.judged.fault is not None and told.judged.fault.kind not in ("touched", "aliased", "overwritten", "unlike", "registered"):
            told.judged = shrunk(bench, told.judged)
        code = _code(bench, told.judged.trial)
        if code:
            report.facts["code"] = code
    report.facts["speed"] = _speed(whole, report)


def shrunk(bench: Bench, judged: Judged) -> Judged:
    """The same fault in the smallest sizes at which it occurs, one dimension after another."""
    trial, until = judged.trial.but(given=False), time.monotonic() + _PATIENCE
    best = judged
    for name in bench.dimensions.sizes:
        for size in _SMALL:
            now = dict(best.trial.sizes).get(name, bench.dimensions.sizes[name])
            if size >= now or time.monotonic() > until:
                break
            sizes = tuple(sorted({**dict(best.trial.sizes if not best.trial.given else ()), name: size}.items()))
            taken = bench.takes(trial.but(sizes=sizes))
            found = bench.judge(taken) if taken is not None else None
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
        return literals.code(bench.example.filled(made.values, made.numbers))
    except InputError:
        return ""


def _speed(bench: Bench, report: Report) -> dict[str, Any]:
    """Milliseconds of a call on the example for both sides, and the largest error."""
    trial = Trial(given=True, fill="")
    made, wishes = bench.make(trial), bench.wishes_of(trial)
    sides: dict[str, list[float]] = {"candidate": [], "reference": []}
    until = time.monotonic() + _PATIENCE
    for turn in range(_TURNS):
        if turn and time.monotonic() > until:
            break
        for name, function in (("candidate", bench.candidate), ("reference", bench.reference)):
            sides[name].append(1000 * running.run(function, bench.example, made.values, made.numbers, wishes).seconds)
    candidate, reference = (sorted(times)[len(times) // 2] for times in sides.values())
    worst = max((row.r for row in report.boundaries), default=0.0)
    faster = round(reference / max(candidate, 1e-9), 3)
    return {"candidate_ms": round(candidate, 4), "reference_ms": round(reference, 4), "times_as_fast": faster, "r": worst}
