"""Merges the findings on a run's boundaries with those on its ops into one list that reports no bug twice.

An error at a boundary is an effect, and an op is its cause. Where a rule found the cause, the error names it. A cause is an error even if no
boundary shows its effect, since an untrained network hides more effects than a trained one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from precheck import ops
from precheck.analysis.decisions.choices import BY_DIFFERENCE
from precheck.findings import Finding, Row
from precheck.judge import boundary_causes
from precheck.judge.watched_runs import AMPLIFIED, distinct, finding_of, in_noise, shown
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Observation, Operation
from precheck.rules.decision_flip.rule import TIED_ROWS
from precheck.rules.nan.rule import UndefinedLoss
from precheck.rules.rule import Candidate

EFFECTS = frozenset({"overflow", "nan", "accumulated-drift", "gradient-underflow", "decision-flip"})
"""Rules on boundaries whose errors are caused by an op."""
OURS = frozenset({"scaler-skip", "scaler-order", "scaler-collapse"})
"""Rules on how a training loop uses its scaler. They do not apply to a measurement, whose loop is precheck's own and finds the loss scale itself. An
op is the user's: a backward pass of the user may compare a scaled gradient with a number, or add one without the scale."""
WEIGHTS = frozenset({"lost-update", "missing-gradient"})
"""Rules on whole parameters. Boundaries and ops give the same findings, and those of boundaries are about all parameters at once."""

GRADIENTS = frozenset({"gradient", "parameter-gradient", "parameter"})
"""Kinds of boundaries that errors of a backward pass reach."""
Place = tuple[str, int, int]
"""A function in the source: its file, its first line and its last line."""


def concluded(
    boundaries: Sequence[Finding], observation: Observation, candidates: list[Candidate], trace: Trace, rows: Sequence[Row] = ()
) -> list[Finding]:
    """Returns the findings of the run in the order of the ops that show them. Findings that no op shows come last.

    The op that shows an error may come long after the op that caused it. Findings that show earlier are listed earlier.

    `candidates`: those of the ops. `rows`: how far each boundary is from its reference, and how far it may be.
    """
    behind = [with_cause(finding, observation, candidates, _record(finding, trace)) for finding in boundaries]
    reported = [finding for finding, _ in behind]
    drifted = any(finding.severity == "error" and finding.rule in EFFECTS for finding in boundaries)
    required = _required_places(candidates, Sound.of(trace, rows) if drifted else None)
    lost = any(finding.rule == "nan" for finding in boundaries)  # the boundary that is lost in the reference too says so already
    told = [each for each in candidates if not (isinstance(each, UndefinedLoss) and (lost or each.severity == "note"))]
    ops = [_note_if_noise_explains(finding, required, choices=not drifted) for finding in _not_reported_yet(distinct(told), reported)]
    first_shown = dict[tuple[str, str], float]()
    for candidate in candidates:
        here = _rule_and_line(finding_of(candidate))
        first_shown[here] = min(first_shown.get(here, math.inf), shown(candidate).number)
    ordered = [(finding, math.inf if operation is None else operation.number) for finding, operation in behind]
    ordered += [(finding, first_shown.get(_rule_and_line(finding), math.inf)) for finding in ops]
    return [finding for finding, _ in sorted(ordered, key=lambda each: each[1])]


def fails_early(candidates: Sequence[Candidate]) -> bool:
    """Whether an op of the first forward pass has an error that no boundary can excuse, so that the run fails whatever its gradients show."""
    required, never = _required_places(candidates, None), {*OURS, *WEIGHTS, "decision-flip"}
    for candidate in candidates:
        if candidate.severity == "error" and candidate.operation.phase == "forward" and candidate.operation.step <= 1 and candidate.rule not in never:
            if candidate.rule not in AMPLIFIED or _rule_and_line(finding_of(candidate)) not in required:
                return True
    return False


@dataclasses.dataclass(frozen=True)
class Sound:
    """The parts of a drifting run that have no more error than noise runs explain."""

    functions: frozenset[Place]  # every call returned what it returns in float32, up to noise
    wrong: frozenset[Place]  # all other compared functions
    modules: frozenset[str]  # every call returned what it returns in float32, up to noise
    gradients: bool  # whether all gradients are those of float32, up to noise

    @classmethod
    def of(cls, trace: Trace, rows: Sequence[Row]) -> Sound:
        """Sorts functions, modules and gradients by the rows of the report."""
        judged = [(trace.records.get(f"{row.kind}:{row.tensor}@{row.step}"), row) for row in rows if row.kind == "returned"]
        places = {record.place for record, _ in judged if record is not None and record.place is not None}
        wrong = {record.place for record, row in judged if record is not None and record.place is not None and row.failed}
        modules = [(row.tensor.partition("#")[0], row) for row in rows if row.kind == "output"]
        return cls(
            frozenset(places - wrong),
            frozenset(wrong),
            frozenset({name for name, _ in modules} - {name for name, row in modules if row.failed}),
            not any(row.failed for row in rows if row.kind in GRADIENTS),
        )

    def at(self, operation: Operation) -> bool:
        """Whether noise explains the error at an op: the op's function or module is sound, or, in a backward pass, all gradients are."""
        if operation.phase == "backward":
            return self.gradients
        if any(boundary_causes.lies_in(operation, place) for place in self.wrong):
            return False
        return operation.module in self.modules or any(boundary_causes.lies_in(operation, place) for place in self.functions)


def _required_places(candidates: Sequence[Candidate], sound: Sound | None) -> set[tuple[str, str]]:
    """Places of the roundings that the precision requires and noise explains. `sound`: the parts of a drifting run that noise explains; None where
    nothing drifted."""
    explained_places, other_places = set[tuple[str, str]](), set[tuple[str, str]]()
    for candidate in candidates:
        here = sound is None or sound.at(shown(candidate))
        places = explained_places if here and in_noise(candidate) else other_places
        places.add(_rule_and_line(finding_of(candidate)))
    return explained_places if sound is None else explained_places - other_places


def _made_undefined(finding: Finding, candidates: list[Candidate]) -> Finding:
    """Words a warning of a loss that is not finite in the reference either. If an op is known to have made it so, the words are those of the finding
    on that op. A cure that names the user's own inputs stays."""
    made = next((finding_of(each) for each in candidates if isinstance(each, UndefinedLoss) and each.known), None)
    if made is None:
        return finding
    return dataclasses.replace(made, message=f"{made.message}; the check is inconclusive", advice=finding.advice or made.advice)


def with_cause(
    finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None
) -> tuple[Finding, Operation | None]:
    """Returns a finding on a boundary with its cause where one is found, and the op that shows it. `record`: the tensor that the finding is about."""
    if finding.rule == "lost-update":
        return boundary_causes.with_writing_line(finding, observation), None
    if finding.severity == "warning" and finding.rule == "accumulated-drift" and record is not None and record.kind == "returned":
        finding = boundary_causes.error_if_confirmed(finding, observation, record)
        return finding, None
    if (finding.rule, finding.severity) == ("nan", "warning"):
        return _made_undefined(finding, candidates), None
    has_cause = finding.severity == "error" and finding.rule in EFFECTS
    return boundary_causes.with_responsible_op(finding, observation, candidates, record) if has_cause else (finding, None)


def _record(finding: Finding, trace: Trace) -> Record | None:
    """The record of the function or module that a finding is about."""
    keys = (f"{kind}:{finding.tensor}@{finding.step}" for kind in ("returned", "output"))
    return next((trace.records[key] for key in keys if key in trace.records), None)


def _note_if_noise_explains(finding: Finding, required: Collection[tuple[str, str]], *, choices: bool) -> Finding:
    """Turns an error into a note if noise runs contain the same rounding, and the boundaries are healthy beside them.

    Noise runs contain the roundings that the precision requires: of inputs, and of what torch's own modules return. They do not contain those that
    the user's code adds. `required`: the places of required roundings. `choices`: whether no boundary drifted, so that decisions changed no more
    often than under noise. A comparison with the last of the chosen scores is such a decision too, if ties have changed it.
    """
    amplified = finding.rule in AMPLIFIED and _rule_and_line(finding) in required
    base = "".join(finding.op.split(".")[1:2])
    choice = choices and finding.rule == "decision-flip" and (base in BY_DIFFERENCE or (base in ops.COMPARED and finding.limit == TIED_ROWS))
    if finding.severity == "error" and (amplified or choice):
        text = f"{finding.message}; noise runs show that correct rounding explains as much in this model"
        return dataclasses.replace(finding, severity="note", message=text)
    return finding


def _not_reported_yet(ops: Iterable[Finding], reported: Sequence[Finding]) -> Iterable[Finding]:
    """Findings on ops that no finding on a boundary reports already."""
    causes = {_rule_and_line(finding) for finding in reported if finding.severity == "error"}
    rules = {finding.rule for finding in reported}
    for finding in ops:
        repeated = _rule_and_line(finding) in causes or (finding.rule in WEIGHTS and finding.rule in rules)
        of_loop = finding.rule in OURS and not (finding.rule == "scaler-order" and finding.op and finding.severity == "error")
        if not of_loop and not repeated:
            yield finding


def _rule_and_line(finding: Finding) -> tuple[str, str]:
    """The rule that names the cause of a finding, or reports it, and its line in the source."""
    return finding.cause_rule or finding.rule, finding.source
