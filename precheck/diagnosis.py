"""`diagnose`: where in the code, by op and line, what a measurement found comes from.

The story: make the low run once more, under shadow execution. Write the ops that the rules suspect, or the one that added most, beside the errors
that the boundaries showed.
"""

from __future__ import annotations

import dataclasses

from precheck.evidence import shown
from precheck.findings import Report
from precheck.judge import conclusion, ops
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.run import low, observed
from precheck.precisions import Precision


def diagnose(job: Job, precision: Precision, report: Report) -> None:
    """Puts op, line and cause into the errors of `report`, every op's drift into `report.ops`, and says what was covered.

    Costs one run of the job beside float32. The model comes back as from `measure`. A model that cannot be observed so keeps
    the report it has, with the reason in `report.facts["diagnosis"]`.
    """
    if not precision.is_low:
        return
    first = [finding.step for finding in report.errors if finding.rule in conclusion.EFFECTS]
    steps = max(first, default=1) if job.optimizer else 1
    try:
        with doing("looking at every op"):
            observation = observed(dataclasses.replace(job, steps=max(1, min(steps, job.steps))), low(precision)).observation
    except Exception as error:  # the measurement stands on its own; what a mode does to a model that will not have one is no fault of it
        report.facts["diagnosis"] = f"none: {type(error).__name__}: {error}"
        return
    suspects = ops.Verdict().candidates(observation)
    report.findings = [conclusion.explained(finding, observation, suspects) for finding in report.findings]
    shown(report, observation)

