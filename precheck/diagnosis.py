"""`diagnose`: where in the code, by op and line, what a measurement found comes from.

The story: the low run once more, under shadow execution; the ops that the rules suspect, or the one that added most, are
written beside the errors that the boundaries showed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from precheck.findings import Finding, Report
from precheck.judge import culprit, ops
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.run import low, observed
from precheck.observe.shadow.operations import Observation
from precheck.precisions import Precision

EXPLAINED = frozenset({"overflow", "nan", "accumulated-drift", "gradient-underflow", "decision-flip"})
"""Rules of boundaries whose errors have an op behind them."""


def diagnose(job: Job, precision: Precision, report: Report) -> None:
    """Puts op, line and cause into the errors of `report`, every op's drift into `report.ops`, and says what was covered.

    Costs one run of the job beside float32. The model comes back as from `measure`. A model that cannot be observed so keeps
    the report it has, with the reason in `report.facts["diagnosis"]`.
    """
    if not precision.is_low:
        return
    first = [finding.step for finding in report.errors if finding.rule in EXPLAINED]
    steps = max(first, default=1) if job.optimizer else 1
    try:
        with doing("looking at every op"):
            observation = observed(dataclasses.replace(job, steps=max(1, min(steps, job.steps))), low(precision))
    except Exception as error:  # the measurement stands on its own; what a mode does to a model that will not have one is no fault of it
        report.facts["diagnosis"] = f"none: {type(error).__name__}: {error}"
        return
    report.findings = list(_explained(report.findings, observation))
    report.ops = sorted(observation.rows.values(), key=lambda row: row.first)
    report.exponents = observation.exponents
    report.facts |= facts(observation)


def facts(observation: Observation) -> dict[str, Any]:
    """How much of a run the shadow followed."""
    opaque = sum(observation.opaque.values())
    found: dict[str, Any] = {
        "ops": observation.seen,
        "shadowed": observation.shadowed,
        "covered": 1 - opaque / max(1, observation.shadowed),
        "opaque": dict(observation.opaque),
    }
    if observation.forgotten:
        found["forgotten"] = f"the lineage of the first {observation.forgotten} ops was let go"
    if observation.unjudged:
        found["forgotten"] = f"{observation.forgotten} ops were let go unjudged: {observation.unjudged}"
    if observation.each_loss > 1:
        found["losses"] = f"of each {observation.each_loss} backward passes the loss that is furthest from its reference, and the last"
    return found


def _explained(findings: list[Finding], observation: Observation) -> Iterator[Finding]:
    suspects = ops.suspects(observation)
    for finding in findings:
        wanted = finding.severity == "error" and finding.rule in EXPLAINED
        yield culprit.explained(finding, observation, suspects) if wanted else finding
