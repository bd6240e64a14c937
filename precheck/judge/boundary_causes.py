"""Finds the op that caused an error at a boundary of a module or function, and writes it into the finding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from precheck import ops
from precheck.analysis.propagation import attribution
from precheck.analysis.propagation.attribution import Attribution, Splits
from precheck.analysis.propagation.entrances import Entrances
from precheck.analysis.propagation.provenance import determined, effective_roundoff, library_line, low_since, placed
from precheck.analysis.rounding.function_errors import error_in
from precheck.analysis.rounding.function_limits import ADDED, MADE_BY_FUNCTION
from precheck.analysis.unrepresentable.nonfinite import Broken
from precheck.analysis.unrepresentable.zeros import Missed
from precheck.findings import Finding
from precheck.judge.watched_runs import finding_of, required, shown
from precheck.observe.records import Record
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import shortened
from precheck.rules.advice import kept, wide_format, widened
from precheck.rules.better_forms import better_form
from precheck.rules.rule import Candidate
from precheck.words import of_norm, percents

_CAUSES = {
    "overflow": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
    "nan": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
}  # fmt: skip
"""Rules that can explain a non-finite value at a boundary. Every rule can explain a drift."""


def with_responsible_op(
    finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None
) -> tuple[Finding, Operation | None]:
    """Returns an error at a boundary with the op and line that caused it, and the op that shows it. Returns it unchanged if no op stands out.

    `record`: the tensor that the error is about.
    """
    place = None if record is None else record.place
    fitting = [each for each in candidates if each.severity == "error" and _fits(finding, each) and lies_in(each.operation, place)]
    fitting.sort(key=required)
    decided = _decided(finding, observation) if finding.rule == "decision-flip" and all(map(required, fitting)) else None
    if decided is not None:
        return decided
    if fitting:
        behind = next((each for each in fitting if _leads_to(finding, each, place)), fitting[0])
        return _named(finding, behind, place), shown(behind)
    operation = _largest_error(finding, observation, record)
    if operation is None:
        return finding, None
    value, call = operation.outputs[0], _own_call(finding, operation, place)
    of_call = _cause_and_showing(value, observation, call, place) if call else None
    made, showing = of_call or _cause_and_showing(value, observation) or (operation, operation)
    showing = showing or operation
    if finding.measured is not None and finding.limit is not None:
        made = Entrances(observation).of(value, made, finding.measured, finding.limit)
    candidates_there = [each for each in candidates if each.severity == "error" and each.operation.blamed == made.blamed and _fits(finding, each)]
    for each in candidates_there:
        if lies_in(shown(each), place):  # a rounding before the function, which only the function shows
            return _named(finding, each, place), shown(each)
    before, after = percents(showing.drift_in), percents(showing.outputs[0].drift)
    cause = f"{placed(showing)}: an error of {before} goes in, and one of {after} comes out"
    if made is not showing:
        cause = f"{placed(made)}{low_since(made)}: its rounding error grows at {placed(showing)}{cause[len(placed(showing)) :]}"
    return _caused_at(finding, made, cause, _advice(made, showing, observation)), showing


def error_if_confirmed(finding: Finding, observation: Observation, record: Record) -> Finding:
    """Turns a warning on what a function returns into an error if the function's own lines made the error.

    Up to twice its limit such a result is only a warning, since its floor may be too low: many rows may err in the same way, and in noise runs such
    errors average out. A second measure needs no floor: the function's own error, on the inputs that this call had. It must be beyond the limit, and
    larger than the error of a function that rounds its result once. And it must come from a low difference, or from ops that the user wrote in the
    function. Roundings of torch's own modules do not count, nor do low results of products, which the precision asks for.
    """
    operation = _largest_error(finding, observation, record)
    beyond = (finding.measured or 0.0) > (finding.limit or 0.0)
    call = _own_call(finding, operation, record.place) if beyond and operation is not None else 0
    if operation is None or not call:
        return finding
    value, own = operation.outputs[0], operation.outputs[0].call_error
    if own <= ADDED * effective_roundoff(value) or own**2 < MADE_BY_FUNCTION * value.drift**2 or not determined(value):
        return finding
    attributed = _attributed(value, observation, call)
    cause = attributed.cause(attribution.written)
    difference = None if cause is None else attributed.difference(cause, observation.functions)
    made = difference or attributed.cause(_chosen)
    here = sum(share for each, share in attributed.shares.items() if _chosen(each) and lies_in(each, record.place))
    if made is None or not lies_in(made, record.place) or (difference is None and here < MADE_BY_FUNCTION):
        return finding
    made = Entrances(observation).of(value, made, finding.measured or 0.0, finding.limit or 0.0)
    rule = "cancellation" if made is difference else "amplified-rounding"
    shows = f"an error of {percents(made.drift_in)} goes in, and one of {percents(made.outputs[0].drift)} comes out"
    alone = f"on the same inputs as the reference, the function alone is off by {of_norm(own)}"
    text = f"{rule}: {placed(made)}: {shows if made is difference else alone}"
    return dataclasses.replace(_caused_at(finding, made, text, _advice(made, made, observation)), severity="error", cause_rule=rule)


def _chosen(operation: Operation) -> bool:
    """Whether an op of the user's rounds where the precision does not ask for it, as it does at products."""
    return attribution.written(operation) and operation.base not in ops.PRODUCTS


def _decided(finding: Finding, observation: Observation) -> tuple[Finding, Operation] | None:
    """A finding on too many flips, with the line that made most of the error in the compared numbers, and the op that compares them. That op is
    exact. It decides otherwise since its numbers differ, by however little."""
    forward = (each for each in observation.operations if each.inputs and each.phase == "forward")
    same = (each for each in forward if each.title.startswith(f"{finding.op}.") and each.module == finding.module)
    deciding = max(same, key=lambda each: (each.flips.changed if each.flips is not None else 0, each.drift_in), default=None)
    scores = max(deciding.inputs, key=attribution.drift, default=None) if deciding is not None else None
    if deciding is None or scores is None or not attribution.drift(scores):
        return None
    made, _ = _cause_and_showing(scores, observation) or (deciding, None)
    cause = f"{placed(made)}: the numbers that {placed(deciding)} compares are off by {percents(scores.drift)} of their norm"
    wide = wide_format(observation)
    advice = f"compare in {wide}: {widened(made, wide)}"
    return _caused_at(finding, made, cause, advice), deciding


def _caused_at(finding: Finding, made: Operation, cause: str, advice: str) -> Finding:
    """The finding, with the op that caused it, and that op's line."""
    return dataclasses.replace(finding, op=made.title, source=shortened(made.blamed), via=library_line(made), cause=cause, advice=advice)


def _advice(made: Operation, showing: Operation, observation: Observation) -> str:
    """What to change on the line of the op that made an error, which another op shows."""
    return "; or ".join(filter(None, (better_form(made, observation.consumers()), kept(made, showing, wide_format(observation)))))


def _named(finding: Finding, behind: Candidate, place: tuple[str, int, int] | None) -> Finding:
    """The finding, with the fault on an op that caused it."""
    first = finding_of(behind)
    cause = f"{first.rule}: {first.message}"
    module = finding.module or (first.module if place is not None else "")
    there = dataclasses.replace(finding, op=first.op, module=module, source=first.source, via=first.via)
    return dataclasses.replace(there, cause=cause, cause_rule=first.rule, advice=first.advice)


def with_writing_line(finding: Finding, observation: Observation) -> Finding:
    """Returns a `lost-update` finding with the user's line that writes the weight, where there is one."""
    line = next((update.wrote for update in observation.updates if update.parameter == finding.tensor), "")
    return dataclasses.replace(finding, source=shortened(line)) if line and not finding.source else finding


def _attributed(value: Value, observation: Observation, call: int) -> Attribution:
    """The ops that share the error of a value. `call`: only of the error that this call of a function added itself; 0: of all."""
    if not call:
        return Attribution(value, observation.operations)
    return Attribution(value, [each for each in observation.operations if each.call == call], Splits(error_in(call)))


def _cause_and_showing(
    value: Value, observation: Observation, call: int = 0, place: tuple[str, int, int] | None = None
) -> tuple[Operation, Operation | None] | None:
    """The op that caused a value's error, and the op that shows it most. None if no op in the function at `place` did. `call`: see `_attributed`."""
    attributed = _attributed(value, observation, call)
    readers = observation.consumers()
    cause, changed = attributed.to_change(observation.functions, lambda each: not _disturbed(each, readers))
    if cause is None or changed is None or not lies_in(cause, place):
        return None
    return changed, attributed.shown(cause)


def _disturbed(operation: Operation, readers: Mapping[Value, Sequence[Operation]]) -> bool:
    """Whether noise runs make the rounding of this op too, so that it is part of what rounding explains: a cast of autocast's own, and what a module
    returns to the one that called it."""
    inside = f"{operation.module}."
    left = (each for value in operation.outputs for each in readers.get(value, ()) if not f"{each.module}.".startswith(inside))
    return operation.implicit or (bool(operation.module) and any(left))


def _own_call(finding: Finding, operation: Operation, place: tuple[str, int, int] | None) -> int:
    """The call of a function that made an op's result, if the error that it added itself is beyond the limit. Otherwise 0: then its inputs are to
    blame as well."""
    value = operation.outputs[0]
    if finding.measured is None or finding.limit is None or not value.call_error < math.inf:
        return 0
    return operation.call if value.call_error * finding.measured > finding.limit * value.drift else 0


def _fits(finding: Finding, candidate: Candidate) -> bool:
    """Whether a candidate can be the cause of a finding: its rule can have this effect, and it does not come later."""
    if finding.rule in _CAUSES and candidate.rule not in _CAUSES[finding.rule]:
        return False
    if finding.rule in _CAUSES and candidate.operation.step < finding.step:
        return True  # an optimizer's step that breaks weights breaks what the next step computes from them
    if finding.rule == "gradient-underflow":
        return candidate.rule == "gradient-underflow"
    return candidate.operation.phase in ("forward", "data") or candidate.operation.phase == finding.phase


def _leads_to(finding: Finding, candidate: Candidate, place: tuple[str, int, int] | None) -> bool:
    """Whether a candidate explains the boundary well. For Inf or NaN at the boundary it must have made Inf or NaN, not only an error. A rounding
    inside a function does not explain the function's result if only an op outside the function shows it."""
    if finding.rule in _CAUSES and not isinstance(candidate.fact, (Broken, Missed)):
        return False
    return lies_in(shown(candidate), place)


def _largest_error(finding: Finding, observation: Observation, record: Record | None) -> Operation | None:
    """The op inside the blamed function or module whose result has the largest error. Results of the blamed tensor's shape come first."""
    in_phase = [operation for operation in observation.operations if operation.phase == finding.phase and operation.step <= max(1, finding.step)]
    if record is not None and record.place is not None:
        own = [operation for operation in in_phase if lies_in(operation, record.place)]
    else:
        own = [operation for operation in in_phase if not finding.module or f"{operation.module}.".startswith(f"{finding.module}.")]
    made = [value for operation in own or in_phase for value in operation.outputs[:1] if value.maker is operation and value.roundoff]
    same_shape = [value for value in made if record is not None and value.shape == record.shape]
    furthest = max(same_shape or made, key=lambda each: each.drift, default=None)
    return furthest.maker if furthest is not None and furthest.drift > 2 * furthest.roundoff else None


def lies_in(operation: Operation, function: tuple[str, int, int] | None) -> bool:
    """Whether the user's line of an op lies in that function: in its file, from its first line to its last."""
    if function is None:
        return True
    file, first, last = function
    path, _, line = operation.blamed.rpartition(":")
    return path == file and first <= int(line) <= last
