"""Takes from a report what a file of known failures stores: the errors, and how far each module is beyond its limit."""

from __future__ import annotations

import math

from precheck.analysis.labels import module_of, phase_of
from precheck.analysis.noise_floor import noise
from precheck.analysis.training.displacements import LOST_UPDATE
from precheck.findings import Report
from precheck.judge.known_failures import Fault, Observed, Reach

CLOSE = noise.WARN / noise.FAIL
"""A tensor that was beyond its limit counts as mended only below this many times the limit."""
CLEAR = noise.FAIL / noise.WARN
"""A tensor beyond this many times its limit is beyond it on every machine and with every noise run. The limit for errors is as many times the limit
for healthy tensors."""


def errors_and_places(report: Report) -> Observed:
    """Returns the errors of a report, and the modules that are beyond their limits or close to them."""
    faults: dict[tuple[str, str], Fault] = {}
    for finding in report.errors:
        at, measured = place_name(finding.phase, finding.module), finding.measured
        faults[finding.rule, at] = Fault(finding.rule, at, None if measured is None or math.isnan(measured) else measured)
    healthy = set(report.facts.get("excused", ()))
    beyond: dict[str, Reach] = {}
    excused: dict[str, float] = {}
    for row in report.boundaries:
        where = place_name(phase_of(row.kind), module_of(row.tensor, row.kind))  # type: ignore[arg-type]  # a Row's kind is a Kind
        if f"{row.kind}:{row.tensor}@{row.step}" in healthy:
            excused[where] = max(excused.get(where, 0.0), row.r / row.allowed)
        elif row.determined:
            times = row.r / row.allowed  # `allowed` has what chance may do to r: 1.5 for large tensors, Fisher's F for small ones
            _keep(beyond, where, Reach(times, row.allowed / noise.WARN, clear=times > CLEAR))
    if any(rule == "lost-update" for rule, _ in faults):
        for update in report.updates:
            if update["lost"]:
                times = (1 - update["arrived"]) / (1 - LOST_UPDATE)
                _keep(beyond, place_name("optimizer", module_of(update["parameter"], "update")), Reach(times, math.inf, clear=True))
    return Observed(tuple(faults.values()), beyond, excused)


def place_name(phase: str, module: str) -> str:
    """The name of a place, as in `forward layers.0.norm`. For the model itself it is `forward`."""
    return f"{phase} {module}".strip()


def _keep(beyond: dict[str, Reach], where: str, reach: Reach) -> None:
    if reach.times > CLOSE and (where not in beyond or reach.times > beyond[where].times):
        beyond[where] = reach
