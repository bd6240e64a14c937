"""Runs that may contradict a reference: in float64, and in float32 with decisions of its own.

The reference takes the decisions of the run under a precision. They may lead it where float32 would not come: a solver that makes the run's steps,
each as long as float32 finds right, ends elsewhere. All of these runs are exact, so a tensor is wrong only if it is far from each of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Set

import torch

from precheck.analysis.noise_floor import drift
from precheck.analysis.noise_floor.boundaries import REFERENCE_OFF
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import reference
from precheck.precisions import Precision


class OtherReferences:
    """The other exact runs of one measurement. Each is made when it is first needed. `log`: what the run under the precision has decided."""

    def __init__(self, job: Job, precision: Precision, log: DecisionLog, *, functions: bool) -> None:
        self.job, self.precision, self.log, self.functions = job, precision, log, functions

    @functools.cached_property
    def deciding(self) -> Trace:
        """The float32 run with its own decisions."""
        return run(self.job, reference(torch.float32, self.precision, follows=self.log.draws(), functions=self.functions))

    def without_flips(self, places: Set[str]) -> Trace:
        """The float32 run with its own decisions, except at these places, where it takes those of the run under the precision."""
        return run(self.job, reference(torch.float32, self.precision, follows=self.log.draws(places), functions=self.functions))

    def contradicting(self, low: Trace, beside: Trace, rows: Mapping[str, drift.ComparedTensor], *, early: bool) -> set[str]:
        """Keys of the rows for which `beside`, the reference of the run `low`, is none. `early`: only up to the loss of the first step.

        Either float64 is far from it, or the run is near float32 with its own decisions: both relative to the row's error.
        """
        found: set[str] = set()
        if any(flipped for flipped, _ in beside.flips.values()):
            near = drift.compare(low, self.deciding, drift.Spreads({}, 1), self.precision)
            found = {row.record.key for row in near if row.record.key in rows and row.drift < REFERENCE_OFF * rows[row.record.key].drift}
        job = dataclasses.replace(self.job, optimizer=None, steps=1) if early else self.job
        setting = dataclasses.replace(reference(torch.float64, self.precision, follows=self.log, functions=self.functions), early=early)
        try:
            exact = run(job, setting)
        except Exception:  # some models do not run in float64
            return found
        own = {row.record.key: row.drift for row in drift.compare(beside, exact, drift.Spreads({}, 1), self.precision)}
        return found | {key for key, row in rows.items() if own.get(key, 0.0) > REFERENCE_OFF * row.drift}
