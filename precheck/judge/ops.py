"""A watched run's verdict, op by op: every rule that can be told without a golden."""

from __future__ import annotations

from precheck.findings import Finding
from precheck.judge import absorption, choices, events, gradients, raised, scaling, updates
from precheck.judge.events import Suspect
from precheck.judge.lineage import Origins, descendants, placed, via
from precheck.judge.rounding import Rounding
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.source import shortened


def suspects(observation: Observation) -> list[Suspect]:
    """What the rules find, in the order in which the causes happened."""
    origins, roots = Origins(), events.roots(observation)
    spoiled = descendants(observation, roots)  # what follows from Inf and NaN is no fault of its own
    rounding = Rounding(observation, origins, spoiled).judged()  # traces the origins on its way
    choice = [suspect for suspect in choices.flipped(observation, origins) if not spoiled.intersection(suspect.operation.outputs)]
    unarrived = updates.unarrived(observation)
    steps = {suspect.operation.source for suspect in unarrived}  # a step by hand that is lost is an addition that was absorbed
    found = [
        *events.nonfinite(roots),
        *events.flooded(observation, spoiled),
        *events.starved_gradients(observation, spoiled),
        *rounding,
        *(suspect for suspect in absorption.absorbed(observation) if suspect.operation.source not in steps),
        *choice,
        *gradients.missing(observation),
        *unarrived,
        *updates.stalled(observation),
        *scaling.faults(observation),
        *raised.behind(observation),
    ]
    return sorted(found, key=lambda suspect: suspect.operation.number)


def found(observation: Observation) -> list[Finding]:
    """The findings of a run, in the order in which their causes happened; one for each rule and line."""
    distinct: dict[tuple[str, ...], Finding] = {}
    for suspect in suspects(observation):
        finding = finding_of(suspect)
        distinct.setdefault((finding.rule, finding.source, finding.via, finding.phase), finding)
    return list(distinct.values())


def finding_of(suspect: Suspect) -> Finding:
    operation = suspect.operation
    return Finding(
        suspect.rule, suspect.severity, f"{placed(operation)}: {suspect.message}", operation.phase, operation.title if "." in operation.name else "",
        operation.module, shortened(operation.blamed), operation.step, suspect.tensor, suspect.measured, suspect.limit, via=via(operation),
    )  # fmt: skip
