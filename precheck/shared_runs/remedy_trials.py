"""The trials of a remedy: runs the model with some parts in float32, and judges it by one low run or a whole measurement, within a budget.

A whole measurement costs several runs. The float32 reference and the noise floors hardly depend on which modules stay in float32. So those of the
failing measurement serve, and most trials are one low run beside them (`Screening`). A model that fails there counts as failed. A model that passes
there is measured in full before it is reported.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Container

import torch

from precheck.analysis.noise_floor import drift
from precheck.findings import Finding, Report
from precheck.judge.compared_runs import report_on
from precheck.measurement import Measurement
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.models import float32_parts
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.observe.timing.contestant import Contestant, borrowed
from precheck.precisions import Precision, resolve
from precheck.shared_runs.closer_look import FIRST_LOOK, is_early
from precheck.shared_runs.smallest_set import SpentError
from precheck.words import counted

PATIENCE, LEAST = 5.0, 0.1
"""How long the search for a remedy after a failed test may take, unless the user asks for more: PATIENCE times a low and a float32 step, but at least
LEAST seconds. That is enough for three or four trials of one low run each. The measurement of what was found comes on top."""

Kept = tuple[tuple[str, ...], tuple[str, ...]]
"""Modules to keep in float32, and the functions in them to which that is limited. No functions: the whole modules."""


def patience(job: Job, precision: Precision) -> float:
    """The seconds that a search may take. Measured by one plain step under the precision and one in float32."""
    taken = 0.0
    with borrowed(job):
        for each in (precision, resolve("32-true")):
            contestant = Contestant(job, each)
            with contestant.placed():
                begun = time.perf_counter()
                contestant.step()
                taken += time.perf_counter() - begun
    return max(LEAST, PATIENCE * taken)


class Trials:
    """All trials of one search. `best`: the last set that passed, with its report. `measured`: the sets that had a whole measurement."""

    def __init__(
        self, job: Job, precision: Precision, report: Report, most: int, seconds: float | None, measured: Callable[[], Report],
        failed: Callable[[], Measurement] | None,
    ) -> None:  # fmt: skip
        """`measured` makes a whole measurement of the job as it is when called. `failed` gives the one that failed, for trials of one low run.
        None: every trial is a whole measurement."""
        self.job, self.precision, self.most, self.whole, self.made = job, precision, most, measured, 0
        self.spent = ""  # why the trials ended
        self.known: dict[Kept, Report | None] = {((), ()): report}
        self.measured: set[Kept] = {((), ())}
        self.best: tuple[Kept, Report] | None = None
        self.ends = None if seconds is None else time.perf_counter() + seconds
        self.screening = None if failed is None else self._screening(failed, report)

    @property
    def cheap(self) -> bool:
        """Whether most trials are one low run."""
        return self.screening is not None and self.screening.covers

    def report(self, key: Kept, functions: Container[str] | None = None) -> Report | None:
        """The report with those modules, or their functions, in float32. None where the model does not run like that.

        `functions` replaces those of the key. The result is then not stored.
        """
        if functions is not None:
            return self._tried(key, functions)
        if key not in self.known:
            self.known[key] = self._tried(key, key[1])
        report = self.known[key]
        if report is not None and not report.errors:
            self.best = key, report  # later trials try parts of a set that passed, so the last one is the smallest
        return report

    def confirmed(self) -> bool:
        """Whether the set that passed last also passes a whole measurement. If not, `best` is None, and all further trials are whole measurements."""
        if self.best is None or self.best[0] in self.measured:
            return True
        key = self.best[0]
        report = self._whole(key)
        self.best = None if report is None or report.errors else (key, report)
        if self.best is None:
            self.screening = None
            self.known = {key: each for key, each in self.known.items() if key in self.measured or (each is not None and each.errors)}
        return self.best is not None

    def _screening(self, failed: Callable[[], Measurement], report: Report) -> Screening | None:
        """The screening by one low run. None where one low run does not show the failure."""
        try:
            with doing("looking for a remedy"):
                screening = Screening(failed(), report)
        except Exception:  # as in `_tried`
            return None
        return screening if screening.tells else None

    def _tried(self, key: Kept, functions: Container[str]) -> Report | None:
        self._counted()
        try:
            with doing(f"looking for a remedy, trial {self.made} of at most {self.most}"), float32_parts.exempted(self.job.model, key[0], functions):
                report = None if self.screening is None else self.screening.report()
                if self.screening is not None and report is not None and (report.errors or self.best is not None or self.screening.covers):
                    return report
                if functions is key[1]:
                    self.measured.add(key)
                return self.whole()
        except Exception:  # the model may not run with some parts in float32; then it is no remedy
            return None

    def _whole(self, key: Kept) -> Report | None:
        self.measured.add(key)
        try:
            with doing("looking for a remedy, the last measurement"), float32_parts.exempted(self.job.model, *key):
                self.known[key] = self.whole()
        except Exception:
            self.known[key] = None
        return self.known[key]

    def _counted(self) -> None:
        """Counts a trial. Raises SpentError where there is no trial or no time left."""
        late = self.ends is not None and time.perf_counter() > self.ends
        if late or self.made >= self.most:
            more = self.most if late else 2 * self.most
            self.spent = f"pytest -o remedy_trials={more} (found none in {counted(self.made, 'trial')})"
            raise SpentError
        self.made += 1


class Screening:
    """The reference and the noise floors of a failing measurement, and its report.

    `tells`: whether they alone show that it fails. `covers`: whether they show each of its errors. Trials end after the first forward pass if all
    errors are in it.
    """

    def __init__(self, failed: Measurement, report: Report) -> None:
        self.job, self.precision = failed.job, failed.precision
        facts = report.facts  # tensors beyond their limits that the measurement excused or did not look at
        self.excused = frozenset(facts.get("excused", ())) | frozenset(facts.get("unasked", ()))
        failed.first_look()
        self.log, self.reference = failed.log, failed.reference
        self.spreads = drift.Spreads(drift.spreads(failed.reference, failed.noises[:FIRST_LOOK]), FIRST_LOOK)
        self.setting = dataclasses.replace(low(self.precision), functions=failed.functions)
        errors = [error for error in report.errors if error.phase != "scaler"]  # what a scaler does follows from the others
        if self.job.loss is not None and errors and all(error.phase == "forward" and error.step <= 1 for error in errors):
            self.job, self.setting = dataclasses.replace(self.job, optimizer=None, steps=1), dataclasses.replace(self.setting, early=True)
            early = {key: record for key, record in self.reference.records.items() if is_early(record)}
            self.reference = dataclasses.replace(self.reference, records=early)
        shown = {error.tensor for error in self._judged(failed.low).errors}
        self.tells, self.covers = bool(shown), all(error.tensor in shown for error in errors)

    def report(self) -> Report | None:
        """Runs the model as it is now, and returns the report. None if it fails perhaps only by other decisions, random draws or buffers."""
        log = DecisionLog()
        seen = run(self.job, dataclasses.replace(self.setting, records=log))
        report = self._judged(seen)
        return report if not report.errors or (self._comparable(log, report.errors) and not self._rounds_buffers()) else None

    def _judged(self, seen: Trace) -> Report:
        rows = drift.compare(seen, self.reference, self.spreads, self.precision)
        report = report_on(seen, self.reference, rows, self.precision, explained=self.excused)
        report.findings = [_placed(finding, seen) for finding in report.findings]
        return report

    def _comparable(self, log: DecisionLog, errors: list[Finding]) -> bool:
        """Whether the run made the decisions and random draws of the first run, also in the backward pass if an error lies there."""
        backward = all(error.phase != "forward" for error in errors)
        asked = log.entries if self.setting.early else self.log.entries  # the first run went on
        return all(_same(self.log.entries.get(key), log.entries.get(key)) for key in asked if backward or key[0] != "backward")

    def _rounds_buffers(self) -> bool:
        """Whether modules that stay in float32 now hold buffers that were rounded in the reference."""
        stored = self.precision.is_low and not self.precision.autocasts
        return stored and any(buffer.is_floating_point() for module in float32_parts.kept_in_float32(self.job.model) for buffer in module.buffers())


def _placed(finding: Finding, seen: Trace) -> Finding:
    """A finding on what a function returns, with the module whose code has called the function."""
    caller = seen.makers.get(f"returned:{finding.tensor}@{finding.step}", "")
    return dataclasses.replace(finding, module=caller.partition("#")[0]) if caller and not finding.module else finding


def _same(one: tuple[torch.Tensor | None, ...] | None, other: tuple[torch.Tensor | None, ...] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(
        mine is theirs or (mine is not None and theirs is not None and mine.shape == theirs.shape and torch.equal(mine, theirs.to(mine.dtype)))
        for mine, theirs in zip(one, other, strict=True)
    )
