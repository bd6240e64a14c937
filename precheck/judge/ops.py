"""A watched run's verdict, op by op: every rule that can be told without a golden."""

from __future__ import annotations

from precheck.findings import Finding
from precheck.judge import absorption, choices, events, gradients
from precheck.judge.events import Suspect
from precheck.judge.lineage import Origins
from precheck.judge.rounding import Rounding
from precheck.observe.operations import Observation
from precheck.observe.source import shortened


def found(observation: Observation) -> list[Finding]:
    """The findings of a run, in the order in which their causes happened; one for each rule and line."""
    origins = Origins()
    rounding = Rounding(observation, origins).judged()  # traces the origins on its way
    suspects = [
        *events.nonfinite(observation, origins), *events.flooded(observation), *events.starved_gradients(observation),
        *rounding, *absorption.absorbed(observation), *choices.flipped(observation, origins), *gradients.missing(observation),
    ]  # fmt: skip
    suspects.sort(key=lambda suspect: suspect.operation.number)
    distinct: dict[tuple[str, str, str], Finding] = {}
    for suspect in suspects:
        finding = _finding(suspect)
        distinct.setdefault((finding.rule, finding.source, finding.phase), finding)
    return list(distinct.values())


def _finding(suspect: Suspect) -> Finding:
    operation = suspect.operation
    where = shortened(operation.source) if operation.source else ""
    return Finding(
        suspect.rule, suspect.severity, f"{operation.title} at {where or 'an unknown line'}: {suspect.message}", operation.phase, operation.title,
        operation.module, where, operation.step, "", suspect.measured, suspect.limit,
    )  # fmt: skip
