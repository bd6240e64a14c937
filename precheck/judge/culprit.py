"""Finds the op that caused an error at a boundary of a module or function, and writes it into the finding."""

from __future__ import annotations

import dataclasses
import math

from precheck.analysis import attribution
from precheck.analysis.attribution import Attribution, Splits
from precheck.analysis.function_errors import OwnError, error_in
from precheck.analysis.nonfinite import Broken
from precheck.analysis.provenance import placed, via
from precheck.analysis.rounding import Misrounded
from precheck.analysis.zeros import Missed
from precheck.findings import Finding
from precheck.judge.watched_runs import finding_of
from precheck.observe.records import Record
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.source import shortened
from precheck.rules.rule import Candidate
from precheck.words import percents

_CAUSES = {
    "overflow": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
    "nan": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
}  # fmt: skip
"""Rules that can explain a non-finite value at a boundary. Every rule can explain a drift."""
AMPLIFIED = frozenset({"amplified-rounding", "cancellation"})
"""Rules on a rounding that later ops amplify."""


def explained(
    finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None
) -> tuple[Finding, Operation | None]:
    """Returns an error at a boundary with the op and line that caused it, and the op that shows it. Returns it unchanged if no op stands out.

    `record`: the tensor that the error is about.
    """
    place = None if record is None else record.place
    fitting = [each for each in candidates if each.severity == "error" and _fits(finding, each) and lies_in(each.operation, place)]
    fitting.sort(key=required)
    if fitting:
        behind = next((each for each in fitting if _leads_to(finding, each, place)), fitting[0])
        return _named(finding, behind, place), shown(behind)
    operation, value = _largest_error(finding, observation, record) or (None, None)
    if operation is None or value is None:
        return finding, None
    made, showing = _own_cause_and_showing(finding, value, observation, place) or _cause_and_showing(value, observation)
    made, showing = made or operation, showing or operation
    candidates_there = [each for each in candidates if each.severity == "error" and each.operation.blamed == made.blamed and _fits(finding, each)]
    for each in candidates_there:
        if lies_in(shown(each), place):  # a rounding before the function, which only the function shows
            return _named(finding, each, place), shown(each)
    before, after = percents(showing.drift_in), percents(showing.outputs[0].drift)
    cause = f"{placed(showing)}: the relative error is {before} before it and {after} after it"
    if made is not showing:
        cause = f"{placed(made)}: its rounding error grows at {placed(showing)}{cause[len(placed(showing)) :]}"
    return dataclasses.replace(finding, op=made.title, source=shortened(made.blamed), via=via(made), cause=cause), showing


def required(candidate: Candidate) -> bool:
    """Whether a candidate is a rounding that the precision requires, which later ops amplify.

    Noise runs contain it, so what it does to a boundary is in that boundary's floor. An error beyond the floor has another cause, if there is one.
    """
    return candidate.rule in AMPLIFIED and (candidate.operation.plain or bool(candidate.operation.converts))


def _named(finding: Finding, behind: Candidate, place: tuple[str, int, int] | None) -> Finding:
    """Returns `finding` with a candidate as its cause."""
    first = finding_of(behind)
    cause = f"{first.rule}: {first.message}"
    module = finding.module or (first.module if place is not None else "")
    return dataclasses.replace(finding, op=first.op, module=module, source=first.source, via=first.via, cause=cause, cause_rule=first.rule)


def written(finding: Finding, observation: Observation) -> Finding:
    """Returns a `lost-update` finding with the user's line that writes the weight, where there is one."""
    line = next((update.wrote for update in observation.updates if update.parameter == finding.tensor), "")
    return dataclasses.replace(finding, source=shortened(line)) if line and not finding.source else finding


def _cause_and_showing(value: Value, observation: Observation) -> tuple[Operation | None, Operation | None]:
    """The op that caused a value's error, and the op that shows the error most. None for each that is not found."""
    attributed = Attribution(value, observation.operations)
    cause = attributed.cause(attribution.written)
    if cause is None:
        return None, None
    return attributed.difference(cause, observation.functions) or cause, attributed.shown(cause)


def _own_cause_and_showing(
    finding: Finding, value: Value, observation: Observation, place: tuple[str, int, int] | None
) -> tuple[Operation, Operation | None] | None:
    """The same for the error that the call of a function added itself. None if that error alone is within the limit: then what the function was given
    is to blame as well.
    """
    call = 0 if value.maker is None else value.maker.call
    if place is None or not call or finding.measured is None or finding.limit is None or not value.restarted < math.inf:
        return None
    if value.restarted * finding.measured <= finding.limit * value.drift:
        return None
    attributed = Attribution(value, [each for each in observation.operations if each.call == call], Splits(error_in(call)))
    cause = attributed.cause(attribution.written)
    if cause is None or not lies_in(cause, place):
        return None
    return attributed.difference(cause, observation.functions) or cause, attributed.shown(cause)


def _fits(finding: Finding, candidate: Candidate) -> bool:
    """Whether a candidate can be the cause of a finding: its rule can have this effect, and its phase is not later."""
    if finding.rule in _CAUSES and candidate.rule not in _CAUSES[finding.rule]:
        return False
    if finding.rule == "gradient-underflow":
        return candidate.rule == "gradient-underflow"
    return candidate.operation.phase in ("forward", "data") or candidate.operation.phase == finding.phase


def _leads_to(finding: Finding, candidate: Candidate, place: tuple[str, int, int] | None) -> bool:
    """Whether a candidate explains the boundary well. For Inf or NaN at the boundary it must have made Inf or NaN, not only an error. A rounding
    inside a function does not explain the function's result if only an op outside the function shows it."""
    if finding.rule in _CAUSES and not isinstance(candidate.fact, (Broken, Missed)):
        return False
    return lies_in(shown(candidate), place)


def shown(candidate: Candidate) -> Operation:
    """The op at which a candidate's error shows. The cause may come long before it."""
    return candidate.fact.shown if isinstance(candidate.fact, (Misrounded, OwnError)) else candidate.operation


def _largest_error(finding: Finding, observation: Observation, record: Record | None) -> tuple[Operation, Value] | None:
    """The op inside the blamed function or module whose result has the largest error. Results of the blamed tensor's shape come first."""
    in_phase = [operation for operation in observation.operations if operation.phase == finding.phase and operation.step <= max(1, finding.step)]
    if record is not None and record.place is not None:
        own = [operation for operation in in_phase if lies_in(operation, record.place)]
    else:
        own = [operation for operation in in_phase if not finding.module or _inside_module(operation.module, finding.module)]
    made = [(operation, value) for operation in own or in_phase for value in operation.outputs[:1] if value.maker is operation and value.roundoff]
    same_shape = [(operation, value) for operation, value in made if record is not None and value.shape == record.shape]
    furthest = max(same_shape or made, key=lambda each: each[1].drift, default=None)
    return furthest if furthest is not None and furthest[1].drift > 2 * furthest[1].roundoff else None


def lies_in(operation: Operation, function: tuple[str, int, int] | None) -> bool:
    """Whether the user's line of an op lies in that function: in its file, from its first line to its last."""
    if function is None:
        return True
    file, first, last = function
    path, _, line = operation.blamed.rpartition(":")
    return path == file and first <= int(line) <= last


def _inside_module(module: str, blamed: str) -> bool:
    return module == blamed or module.startswith(f"{blamed}.")
