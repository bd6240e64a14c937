"""Judges inputs: `Trials` says for each input whether the model fails on it.

Two runs show Inf and NaN, missing gradients, and an upper bound of r, since no noise floor is known yet. A full measurement is made only if that
bound is beyond its limit. After the first measurements it must also be beyond what noise has explained for that tensor before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import torch

from precheck.analysis.decisions.flips import FLIPPED_SHARE
from precheck.analysis.noise_floor import drift
from precheck.findings import Finding, Report
from precheck.goldens.lifecycle import digest
from precheck.judge.compared_runs import report_on
from precheck.measurement import Measurement, measure
from precheck.observe.containers import mapped, tensors
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Job
from precheck.observe.recording.range_use import Reach
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import Precision
from precheck.shared_runs.closer_look import FIRST_LOOK
from precheck.shared_runs.evidence import Evidence

SEARCHED = ("overflow", "nan", "accumulated-drift", "decision-flip", "gradient-underflow", "missing-gradient", "scaler-collapse")
"""The rules whose errors an input can cause in a measurement without an optimizer."""
_PLAIN = frozenset({"overflow", "nan", "missing-gradient", "scaler-collapse"})
"""The rules whose verdict does not depend on noise floors."""
_GENEROUS = 100
"""The first measurements are made for any suspicion. Early draws are often degenerate, with high bounds that noise explains."""
_BEYOND = 1.25
"""The factor by which an upper bound must exceed what was explained for that tensor before. Noise runs differ by a few per cent."""


Bounds = dict[str, float]
"""Bounds by the key of a tensor, or by the place of decisions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one input. `reach` is the distance to overflow in bits, below 0. `drift` is an upper bound of the drift in bits above
    the limit. If the input could not be judged, `why` says why."""

    fault: Finding | None = None
    reach: float = -math.inf
    drift: float = -math.inf
    why: str = ""


SPENT = Verdict(why="the budget was spent")
_UNSTORED = Verdict(why="the precision cannot hold the input itself")
_UNSOUND = Verdict(why="the model is not finite in float32 either")
_RAISED = Verdict(why="the model raised")


class Trials:
    """The inputs tried so far on one model under one precision. Equal inputs get the same verdict without a run.

    After the first fault only the same one counts: the same rule in the same module, or an overflow there, which is a stronger form of others.
    """

    def __init__(self, job: Job, precision: Precision, rules: Collection[str] = SEARCHED) -> None:
        self.job, self.precision, self.rules = job, precision, frozenset(rules)
        self.fault: Finding | None = None
        self.known: dict[str, Verdict] = {}
        self.measured = 0
        self.explained: Bounds = {}  # the highest bounds that a measurement found healthy

    @property
    def judged(self) -> list[Verdict]:
        return [verdict for verdict in self.known.values() if not verdict.why]

    def known_verdict(self, inputs: Any) -> Verdict | None:
        """The verdict on an equal input that was tried before, or None."""
        return self.known.get(_key(inputs))

    def verdict(self, inputs: Any) -> Verdict:
        """Judges an input. Raises what the model raises, unless a fault is being shrunk. The model is restored."""
        key = _key(inputs)
        if key not in self.known:
            verdict = self._tried(inputs)
            self.fault = self.fault or verdict.fault
            self.known[key] = verdict
        return self.known[key]

    def report(self, inputs: Any) -> Report:
        """The report of a measurement on one input."""
        return measure(self.job.model, inputs, precision=self.precision, loss=self.job.loss, seed=self.job.seed)

    def _tried(self, inputs: Any) -> Verdict:
        stored = self.stored(inputs)
        if stored is None:
            return _UNSTORED
        try:
            return self._judged(dataclasses.replace(self.job, inputs=stored))
        except Exception:  # the strategy would not draw a shrunk input, so an exception is not the fault
            if self.fault is None:
                raise
            return _RAISED

    def stored(self, inputs: Any) -> Any:
        """Rounds `inputs` to the format that stores them, so that their rounding causes no fault. None if the format cannot hold them.

        A tensor without positive elements is a mask. Its fill value may overflow.
        """
        dtype = low(self.precision).dtype if self.precision.is_low else None
        if dtype is None:
            return inputs
        rounded = mapped(inputs, lambda value: _rounded(value, dtype))
        before, after = (dict(tensors(each)) for each in (inputs, rounded))
        lost = (name for name in before if bool((before[name].isfinite() & ~after[name].isfinite()).any()))
        return None if any(True for _ in lost) else rounded

    def _judged(self, job: Job) -> Verdict:
        log = DecisionLog()
        with Reach(self.precision.compute) as reach:
            seen = run(job, low(self.precision, records=log))
        dtype = torch.float32 if self.precision.is_low else torch.float64
        plain = run(job, reference(dtype, self.precision, follows=log, decides=DecisionLog()))
        if not _sound(plain):
            return _UNSOUND
        rows = drift.compare(seen, plain, drift.Spreads({}, FIRST_LOOK), self.precision)
        bounds = _bounds(rows)
        report = report_on(seen, plain, rows, self.precision)
        fault = self._first(report, _PLAIN) or self._closer(job, (seen, log), bounds, _flips(plain), report)
        return Verdict(fault, reach.bits, math.log2(max(bounds.values(), default=0.0) or 2.0**-10))

    def _closer(self, job: Job, seen: tuple[Trace, DecisionLog], bounds: Bounds, flips: Bounds, report: Report) -> Finding | None:
        """Measures the input if it is suspicious, and returns the fault."""
        flipping = "decision-flip" in self.rules and self._suspicious(flips, FLIPPED_SHARE * self.precision.roundoff)
        drifting = "accumulated-drift" in self.rules and self._suspicious(bounds, 1.0)
        flushed = self._first(report, {"gradient-underflow"}) is not None
        if not (flipping or drifting or flushed):
            return None
        self.measured += 1
        fault = self._first(Measurement(job, self.precision, seen=Evidence(*seen), brief=not flipping).report(), self.rules)
        if fault is None:
            for name, value in (bounds | (flips if flipping else {})).items():
                self.explained[name] = max(value, self.explained.get(name, 0.0))
        return fault

    def _suspicious(self, values: Bounds, limit: float) -> bool:
        """Whether a value is beyond its limit and beyond what was explained before. The latter does not count for the first measurements and for
        shrunk inputs."""
        healthy = {} if self.fault or self.measured < _GENEROUS else self.explained
        return any(value > limit and value > _BEYOND * healthy.get(name, 0.0) for name, value in values.items())

    def _first(self, report: Report, rules: Collection[str]) -> Finding | None:
        errors = [finding for finding in report.errors if finding.rule in rules and finding.rule in self.rules]
        return next((finding for finding in errors if self.fault is None or _same(finding, self.fault)), None)


def _same(finding: Finding, fault: Finding) -> bool:
    return finding.module == fault.module and finding.rule in (fault.rule, "overflow")


def _sound(plain: Trace) -> bool:
    """Whether the results, losses and parameter gradients of the reference are finite."""
    got = (record for record in plain.records.values() if record.is_result or record.kind in ("loss", "parameter-gradient"))
    return not any(record.nonfinite for record in got)


def _bounds(rows: list[drift.ComparedTensor]) -> Bounds:
    """For each tensor, r over its limit, with only the tensor's own last rounding as its noise floor."""
    finite = (row for row in rows if row.record.kind != "update" and not row.excess_nonfinite and not row.undetermined)
    return {row.record.key: min(row.r / row.allowed, 2.0**60) for row in finite}


def _flips(plain: Trace) -> Bounds:
    """For each place of decisions, the share of decisions that differ from float32."""
    return {name: flipped / total for name, (flipped, total) in plain.flips.items() if flipped}


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not value.is_floating_point() or not value.numel():
        return value
    return value if float(value.amax()) <= 0 and float(value.amin()) < -torch.finfo(dtype).max else value.to(dtype).to(value.dtype)


def _key(inputs: Any) -> str:
    return repr(mapped(inputs, _described))


def _described(value: torch.Tensor) -> Any:
    """A text that differs for tensors with different bits or memory layout."""
    plain = value.detach().clone(memory_format=torch.contiguous_format)  # a single element may have any stride and still count as contiguous
    return f"{tuple(value.stride())} {value.requires_grad} {digest({str(value.device): plain})}"
