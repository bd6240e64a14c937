"""Judges inputs for a pair of models: `PairTrials` says for each input whether the two implementations differ on it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from precheck.comparing import compare
from precheck.findings import Report
from precheck.input_search.trials import Trials, Verdict
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.pairs.callables import as_module
from precheck.precisions import Precision

SEARCHED = ("different", "less-accurate")
"""The rules of comparisons whose findings can be errors."""


class PairTrials(Trials):
    """The inputs tried so far on `model`, the reference, and `other`. After the first fault only the same rule in the same module counts."""

    def __init__(self, model: Any, other: Any, precision: Precision, rules: Collection[str], *, loss: Any, seed: int) -> None:
        super().__init__(job_of(as_module(model, "model"), None, loss=loss, seed=seed), precision, rules)
        self.sides = model, other

    def report(self, inputs: Any) -> Report:
        """The report of the comparison on one input."""
        return compare(*self.sides, inputs, precision=self.precision, loss=self.job.loss, seed=self.job.seed)

    def _judged(self, job: Job) -> Verdict:
        report = self.report(job.inputs)
        most = max((row.r / row.allowed for row in report.boundaries if row.allowed), default=0.0)
        return Verdict(self._first(report, self.rules), drift=math.log2(max(most, 2.0**-10)))
