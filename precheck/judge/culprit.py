"""Which op is behind what a module boundary shows."""

from __future__ import annotations

import dataclasses

from precheck.analysis import attribution
from precheck.analysis.attribution import Attribution
from precheck.analysis.calls import OwnError
from precheck.analysis.nonfinite import Broken
from precheck.analysis.provenance import placed, via
from precheck.analysis.rounding import Misrounded
from precheck.analysis.zeros import Missed
from precheck.findings import Finding
from precheck.judge.ops import finding_of
from precheck.observe.records import Record
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.source import shortened
from precheck.rules.rule import Candidate
from precheck.words import percents

_KIN = {
    "overflow": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
    "nan": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
}  # fmt: skip
"""Of what is not finite at a boundary, the mechanisms that can have made it so. Anything can have made a drift."""


def explained(
    finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None
) -> tuple[Finding, Operation | None]:
    """`finding`, an error at a boundary, with the op and line behind it, and the op that shows it; as it is if none stands out.

    `record`: the tensor that it is about.
    """
    place = None if record is None else record.place
    fitting = [each for each in candidates if each.severity == "error" and _fits(finding, each) and within(each.operation, place)]
    if fitting:
        behind = next((each for each in fitting if _leads_to(finding, each, place)), fitting[0])
        return _named(finding, behind, place), shown(behind)
    operation, value = _shown(finding, observation, record) or (None, None)
    if operation is None or value is None:
        return finding, None
    made, showing = _made(value, observation)
    made, showing = made or operation, showing or operation
    told = [each for each in candidates if each.severity == "error" and each.operation.blamed == made.blamed and _fits(finding, each)]
    for each in told:
        if within(shown(each), place):  # a rounding before the function, which only the function shows
            return _named(finding, each, place), shown(each)
    before, after = percents(showing.drift_in), percents(showing.outputs[0].drift)
    cause = f"{placed(showing)}: the relative error is {before} before it and {after} after it"
    if made is not showing:
        cause = f"{placed(made)}: its rounding shows at {placed(showing)}{cause[len(placed(showing)) :]}"
    return dataclasses.replace(finding, op=made.title, source=shortened(made.blamed), via=via(made), cause=cause), showing


def _named(finding: Finding, behind: Candidate, place: tuple[str, int, int] | None) -> Finding:
    """`finding` with a candidate as its cause."""
    first = finding_of(behind)
    cause = f"{first.rule}: {first.message}"
    module = finding.module or (first.module if place is not None else "")
    return dataclasses.replace(finding, op=first.op, module=module, source=first.source, via=first.via, cause=cause, cause_rule=first.rule)


def written(finding: Finding, observation: Observation) -> Finding:
    """A finding on a weight whose steps do not arrive, at the line of the user's own that writes the weight, where there is one."""
    line = next((update.wrote for update in observation.updates if update.parameter == finding.tensor), "")
    return dataclasses.replace(finding, source=shortened(line)) if line and not finding.source else finding


def _made(value: Value, observation: Observation) -> tuple[Operation | None, Operation | None]:
    """The op that is to be mended for a value's error, and the one that shows it most; None where there is none."""
    whose = Attribution(value, observation.operations)
    cause = whose.cause(attribution.written)
    if cause is None:
        return None, None
    return whose.difference(cause, observation.functions) or cause, whose.shown(cause)


def _fits(finding: Finding, candidate: Candidate) -> bool:
    """A cause comes before its effect, and is of its kind."""
    if finding.rule in _KIN and candidate.rule not in _KIN[finding.rule]:
        return False
    if finding.rule == "gradient-underflow":
        return candidate.rule == "gradient-underflow"
    return candidate.operation.phase in ("forward", "data") or candidate.operation.phase == finding.phase


def _leads_to(finding: Finding, candidate: Candidate, place: tuple[str, int, int] | None) -> bool:
    """Whether what a candidate shows is on the way to the boundary. What makes Inf or NaN comes before a mere error, if the boundary shows Inf or
    NaN. A rounding inside a function that only an op outside of it shows does not explain the function's own result."""
    if finding.rule in _KIN and not isinstance(candidate.fact, (Broken, Missed)):
        return False
    return within(shown(candidate), place)


def shown(candidate: Candidate) -> Operation:
    """The op that shows what a candidate is about: its cause may lie long before it."""
    return candidate.fact.shown if isinstance(candidate.fact, (Misrounded, OwnError)) else candidate.operation


def _shown(finding: Finding, observation: Observation, record: Record | None) -> tuple[Operation, Value] | None:
    """The op inside the function or module that is blamed whose result is furthest off: of those of the shape that is blamed, if there are any."""
    inside = [operation for operation in observation.operations if operation.phase == finding.phase and operation.step <= max(1, finding.step)]
    if record is not None and record.place is not None:
        own = [operation for operation in inside if within(operation, record.place)]
    else:
        own = [operation for operation in inside if not finding.module or _within(operation.module, finding.module)]
    made = [(operation, value) for operation in own or inside for value in operation.outputs[:1] if value.maker is operation and value.roundoff]
    alike = [(operation, value) for operation, value in made if record is not None and value.shape == record.shape]
    furthest = max(alike or made, key=lambda each: each[1].drift, default=None)
    return furthest if furthest is not None and furthest[1].drift > 2 * furthest[1].roundoff else None


def within(operation: Operation, function: tuple[str, int, int] | None) -> bool:
    """Whether the user's line of an op is one of that function: of its file, from its first line to its last."""
    if function is None:
        return True
    file, first, last = function
    path, _, line = operation.blamed.rpartition(":")
    return path == file and first <= int(line) <= last


def _within(module: str, blamed: str) -> bool:
    return module == blamed or module.startswith(f"{blamed}.")
