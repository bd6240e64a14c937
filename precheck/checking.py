"""The verb `check`: compares a model under a precision with a golden, and returns a report.

The inputs and settings must be those recorded. Under float32 the reference is run again and must equal the golden. Under a low precision one run is
compared with the golden, and if all is well, that is all. Otherwise the run is measured against a float32 run of the same process that takes the same
decisions, and the golden is checked for being out of date.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.analysis.noise_floor import drift
from precheck.findings import Finding, Report
from precheck.formats import FP32
from precheck.goldens import lifecycle
from precheck.goldens.file import Golden, read
from precheck.judge import allowances, compared_runs
from precheck.judge.compared_runs import report_on
from precheck.measurement import Measurement, job_of
from precheck.observe import listeners
from precheck.observe.containers import tensors
from precheck.observe.job import Depth, InputError, Job
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import low
from precheck.precisions import Precision, resolve
from precheck.rules.golden_mismatch.rule import mismatched
from precheck.rules.golden_stale import rule as staleness
from precheck.shared_runs.closer_look import FIRST_LOOK
from precheck.shared_runs.evidence import Evidence, concluded, depth_of, diagnose, gathered, record_depth
from precheck.words import described

_SMALL = 1 << 20  # bytes; hashing as many takes less than a millisecond


@arguments.explained
@interrupts.held()
@interpreter.spared
def check(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    golden: str | Path,
    precision: str | Precision = "32-true",
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
    ops: bool = False,
    depth: Depth = "ops",
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Runs `model` under `precision` and judges it against the golden at that path: `measure`, with a recorded reference.

    Args:
        model: As in `measure`, and so are `inputs`, `loss`, `optimizer`, `steps`, `seed`, `depth` and `allow`.
        inputs: The inputs with which the golden was recorded. Other inputs give the finding `golden-stale`.
        golden: The file, as `pytest --golden-refresh` writes it.
        precision: "32-true" asks whether float32 still gives what was recorded; any other, whether this precision is near enough to it.
        ops: Whether `report.ops` lists every op's error even if nothing is wrong.

    Returns:
        As `measure`; `report.facts["golden"]` is the path.

    Raises:
        GoldenMissing: There is no such file.
        GoldenError: The file cannot be used: damaged, or of a newer format.
        PrecisionError: As `measure`.
        InputError: As `measure`.
    """
    job = job_of(model, inputs, loss=loss, optimizer=optimizer, steps=steps, seed=seed)
    chosen, allowed = resolve(precision), allowances.checked(allow)
    if not isinstance(golden, (str, os.PathLike)):
        raise InputError(f"golden is {described(golden)}; pass the path of the file, as in golden=\"golden/test_model/test_model.safetensors\"")
    report = Checking(job, chosen, read(Path(golden)), depth=depth_of(depth)).report(str(golden), whole=ops)
    record_depth(report, depth, chosen)
    stale = any(finding.rule == "golden-stale" for finding in report.findings)
    allowances.apply(report, allowed, judged=chosen.is_low and not stale)
    if not report.ops and (report.errors or ops):
        diagnose(job, chosen, report)
    listeners.judged(job, chosen, golden, report)
    return report


class Checking:
    """The runs of one check. `report` makes the run that it judges; `verdict` judges one that the caller made."""

    def __init__(self, job: Job, precision: Precision, golden: Golden, *, depth: Depth = "boundaries") -> None:
        sampled = frozenset(each.record.key for each in golden.records if each.record.sampled)
        self.job, self.precision, self.golden = dataclasses.replace(job, sampled=sampled), precision, golden
        wanted = {"output", "returned"} if job.loss is None else {each.record.kind for each in golden.records} - {"input"}
        held = [each for each in golden.records if each.record.kind in wanted]
        self.recorded = Trace(records={each.record.key: each.record for each in held})
        self.floors = {each.record.key: each.floors for each in held}
        self.functions = any(each.record.kind == "returned" for each in held)  # whether the golden holds what functions return
        self.fast_path, self.depth = self._may_take_the_fast_path(), depth

    def report(self, path: str, *, whole: bool = False) -> Report:
        """The report of this check. `whole`: gradients that pass between modules are recorded even where the verdict does not need them."""
        found = staleness.under(self._inputs(), self.golden.provenance)
        if found:
            report = Report(precision=self.precision.name)
            report.add(found)
        elif self.precision.name == "32-true":
            report = self._float32()
        else:
            report = (None if whole or self.depth == "ops" else self._glance()) or self.verdict(self.seen())
        report.facts["golden"] = path
        return report

    def _inputs(self) -> list[Finding]:
        """Findings on inputs that differ from those recorded. Small inputs are compared by a hash, which costs less than a sketch."""
        given = dict(tensors(self.job.inputs))
        strided = all(each.layout == torch.strided for each in given.values())
        if strided and sum(each.nbytes for each in given.values()) <= _SMALL and lifecycle.digest(given) == self.golden.provenance.get("inputs"):
            return []
        recorded = {each.record.name: each.record for each in self.golden.records if each.record.kind == "input"}
        now = {each.record.name: each.record for each in lifecycle.inputs_of(self.job)}
        if not staleness.inputs(recorded, now):
            return []
        weights = lifecycle.digest(dict(self.job.model.state_dict()))
        return staleness.inputs(recorded, now, weights_differ=weights != self.golden.provenance.get("weights"))

    def _float32(self) -> Report:
        report = Report(precision=self.precision.name)
        stale, rows = self.stale()
        report.add(stale)
        report.boundaries, report.losses = compared_runs.table(rows), compared_runs.losses(rows)
        return report

    def stale(self) -> tuple[list[Finding], list[drift.ComparedTensor]]:
        """Runs the float32 reference again. Returns findings where it differs from the golden, and each of its tensors beside the recorded one."""
        now = self.reference()
        provenance = lifecycle.provenance(self.job, now)
        differ = provenance["weights"] != self.golden.provenance["weights"]
        rows, moved = self._moved(now, {}, weights_differ=differ)
        if moved:
            rows, moved = self._moved(now, lifecycle.errors(self.job, now), weights_differ=differ)
        found = staleness.settings(self.golden.provenance, provenance) or moved
        return staleness.under(found, self.golden.provenance), rows

    def _moved(self, now: Trace, errors: dict[str, float], *, weights_differ: bool) -> tuple[list[drift.ComparedTensor], list[Finding]]:
        """Compares today's float32 run with the recorded one. `errors` is as in `staleness.compare`."""
        rows = staleness.compare(self.recorded, {each.record.key: each.spread for each in self.golden.records}, now, errors=errors)
        return rows, staleness.out_of_date(rows, self.recorded, now, weights_differ=weights_differ)

    def reference(self) -> Trace:
        """Runs the job in float32."""
        return lifecycle.float32(self.job)

    def _glance(self) -> Report | None:
        """The report on a cheap run that records no decisions. None where something may be wrong, so that a full run is needed."""
        if not self._judges:
            return None
        trace = run(self.job, dataclasses.replace(low(self.precision), fast_path=self.fast_path))
        return None if trace.elsewhere else self._passed(trace, self.against_golden(trace))

    def seen(self) -> Evidence:
        """Runs the job under the precision, and records what it decided."""
        return gathered(self.job, self.precision, self.depth, functions=self.functions)

    def verdict(self, seen: Evidence, *, brief: bool = False) -> Report:
        """The report on a low-precision run as `seen` makes it. `brief`: the report may end with the first error."""
        trace = seen.trace
        rows = self.against_golden(trace)
        passed = self._passed(trace, [row for row in rows if row.record.kind != "gradient"] if rows and brief and self.fast_path else rows)
        if passed is not None:
            concluded(passed, seen)
            return passed
        if brief:
            report = self.measured(seen, brief=True)
            if report.errors:
                return report
        report = self.measured(seen)
        stale, _ = self.stale()
        report.add(stale)
        if not report.errors:
            report.add(mismatched(rows or (), self.precision, flips=report.facts.get("flips", 0)))
        return report

    def measured(self, seen: Evidence, *, brief: bool = False) -> Report:
        """Measures the run against float32 in the same process, without the golden."""
        return Measurement(self.job, self.precision, seen=seen, brief=brief).report()

    def against_golden(self, trace: Trace) -> list[drift.ComparedTensor] | None:
        """Compares `trace` with the golden. None where the golden has no noise floor, or other tensors."""
        if not self._judges or trace.records.keys() - self.recorded.records.keys():
            return None
        spreads = {key: floors[self.precision.placement] * self.precision.roundoff for key, floors in self.floors.items()}
        return drift.compare(trace, self.recorded, drift.Spreads(spreads, FIRST_LOOK), self.precision)

    @functools.cached_property
    def _judges(self) -> bool:
        """Whether the golden alone can decide on a run."""
        floors = [each[self.precision.placement] for each in self.floors.values()]
        return self.precision.is_low and not self.precision.gemm and bool(floors) and not any(map(math.isnan, floors))

    def _may_take_the_fast_path(self) -> bool:
        """Whether the first look may leave out the gradients that pass between modules, as `Setting.fast_path` does.

        Autograd is linear in a gradient and carries it only to leaves. An error on the way that is more than rounding and that matters also shows
        at a leaf, beside a floor that took the same way. So the gradients of all leaves must be compared, that is, of all trained parameters.
        float16 is excluded, since a gradient may leave its range on the way.
        """
        compared = {record.name for record in self.recorded.records.values() if record.kind == "parameter-gradient"}
        trained = {name for name, parameter in self.job.model.named_parameters() if parameter.requires_grad}
        wide, asked = self.precision.compute.min_exponent == FP32.min_exponent, any(each.requires_grad for _, each in tensors(self.job.inputs))
        return wide and not asked and bool(trained) and trained <= compared

    def _passed(self, trace: Trace, rows: list[drift.ComparedTensor] | None) -> Report | None:
        """The report on a run that agrees with the golden. None where something may be wrong."""
        if rows is None:
            return None
        report = report_on(trace, self.recorded, rows, self.precision)
        amiss = report.findings or any(row.failed or row.doubtful for row in rows if row.record.kind != "update")
        return None if amiss else report
