"""Judges a trial of a remedy by one low run in place of a whole measurement, which would cost several runs.

The float32 reference and the noise floors hardly depend on which modules stay in float32. So those of the failing measurement serve, and each trial
is one low run beside them. A model that fails there counts as failed. A model that passes there is measured in full before it is reported.
"""

from __future__ import annotations

import dataclasses

import torch

from precheck.analysis import drift
from precheck.closer_look import FIRST_LOOK, is_early
from precheck.findings import Finding, Report
from precheck.judge.compared_runs import report_on
from precheck.measurement import Measurement
from precheck.observe import float32_parts
from precheck.observe.decisions import DecisionLog
from precheck.observe.records import Trace
from precheck.observe.run import low, run


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
        self.log, self.reference, self.spreads = failed.log, failed.reference, drift.spreads(failed.reference, failed.noises[:FIRST_LOOK])
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
        rows = drift.compare(seen, self.reference, self.spreads, self.precision, samples=FIRST_LOOK)
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
