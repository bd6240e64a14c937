"""The part of a failed check that a file of known failures holds: its faults, and how far each module is beyond its limit."""

from __future__ import annotations

import math

from precheck.analysis import noise
from precheck.analysis.displacements import LOST
from precheck.analysis.labels import module_of, phase_of
from precheck.findings import Finding, Report, Row
from precheck.judge.known_failures import Fault, Reach, Seen

CLOSE = noise.WARN / noise.FAIL
"""Times the limit from which a tensor is looked at twice (`Comparison.doubtful`): what is closer has not been mended beyond chance."""
CLEAR = noise.FAIL / noise.WARN
"""Times the limit beyond which no other machine, kernel or noise run has it within: as far above the limit as that is above health."""


def seen(report: Report) -> Seen:
    """Of a report, its errors and the modules that reach or nearly reach beyond their limits."""
    faults = {(finding.rule, place(finding.phase, finding.module)): finding for finding in report.errors}
    healthy = set(report.facts.get("excused", ()))
    beyond: dict[str, Reach] = {}
    excused: dict[str, float] = {}
    for row in report.boundaries:
        where = place(phase_of(row.kind), module_of(row.tensor, row.kind))  # type: ignore[arg-type]  # a Row's kind is a Kind
        if f"{row.kind}:{row.tensor}@{row.step}" in healthy:
            excused[where] = max(excused.get(where, 0.0), row.r / row.allowed)
        elif row.determined:
            _keep(beyond, where, _reach(row))
    if any(rule == "lost-update" for rule, _ in faults):
        for update in report.updates:
            if update["arrived"] + update["uncertainty"] < LOST:
                times = (1 - update["arrived"]) / (1 - LOST)
                _keep(beyond, place("optimizer", module_of(update["parameter"], "update")), Reach(times, math.inf, clear=True))
    return Seen(tuple(Fault(rule, where, _measured(finding)) for (rule, where), finding in faults.items()), beyond, excused)


def place(phase: str, module: str) -> str:
    """`forward layers.0.norm`; of the model itself, `forward`."""
    return f"{phase} {module}".strip()


def _measured(finding: Finding) -> float | None:
    return None if finding.measured is None or math.isnan(finding.measured) else finding.measured


def _reach(row: Row) -> Reach:
    """What luck may do to r is in `allowed` already: 1.5 for large tensors, and as Fisher's F has it for small ones."""
    times = row.r / row.allowed
    return Reach(times, row.allowed / noise.WARN, clear=times > CLEAR)


def _keep(beyond: dict[str, Reach], where: str, reach: Reach) -> None:
    if reach.times > CLOSE and (where not in beyond or reach.times > beyond[where].times):
        beyond[where] = reach
