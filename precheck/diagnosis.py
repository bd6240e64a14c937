"""`diagnose`: adds to the errors of a report the op and line that caused them.

It makes the low run once more under shadow execution. Each error at a boundary gets the op that a rule suspects, or else the op that added most
error.
"""

from __future__ import annotations

import dataclasses

from precheck.evidence import shown
from precheck.findings import Report
from precheck.judge import conclusion, watched_runs
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.run import low, observed
from precheck.precisions import Precision


def diagnose(job: Job, precision: Precision, report: Report) -> None:
    """Writes op, line and cause into the errors of `report`, every op's drift into `report.ops`, and what was covered into `report.facts`.

    Costs one run of the job beside float32. The model is restored as after `measure`. If a model cannot be run this way, the report stays as it is,
    with the reason in `report.facts["diagnosis"]`.
    """
    if not precision.is_low:
        return
    first = [finding.step for finding in report.errors if finding.rule in conclusion.EFFECTS]
    steps = max(first, default=1) if job.optimizer else 1
    try:
        with doing("looking at every op"):
            observation = observed(dataclasses.replace(job, steps=max(1, min(steps, job.steps))), low(precision)).observation
    except Exception as error:  # the measurement is valid without a diagnosis; some models do not run under a dispatch mode
        report.facts["diagnosis"] = f"none: {type(error).__name__}: {error}"
        return
    suspects = watched_runs.RunJudge().candidates(observation)
    report.findings = [conclusion.with_cause(finding, observation, suspects)[0] for finding in report.findings]
    shown(report, observation)

