"""One verdict on one run, from its boundaries and its ops, without saying a thing twice.

An error at a boundary is an effect, and the op behind it the cause. Where a rule has told the cause, the error names it. A cause is an error even
if no boundary shows its effect: an untrained network hides more than a trained one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from precheck.analysis.choices import BY_DIFFERENCE
from precheck.findings import Finding, Row
from precheck.judge import culprit
from precheck.judge.ops import Verdict, distinct, finding_of
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Observation, Operation
from precheck.rules.rule import Candidate

EFFECTS = frozenset({"overflow", "nan", "accumulated-drift", "gradient-underflow", "decision-flip"})
"""Rules of boundaries whose errors have an op behind them."""
OURS = frozenset({"scaler-skip", "scaler-order", "scaler-collapse"})
"""Rules on how a training loop uses its scaler. The loop of a measurement is precheck's own: it looks for the largest loss scale by itself."""
WEIGHTS = frozenset({"lost-update", "missing-gradient"})
"""Rules on a parameter as a whole. A boundary and an op say the same of it, and the boundary says it of all parameters at once."""

AMPLIFIED = frozenset({"amplified-rounding", "cancellation"})
"""Rules on a rounding that later ops amplify."""
GRADIENTS = frozenset({"gradient", "parameter-gradient", "parameter"})
"""Kinds of boundaries to which errors of a backward pass come."""
Place = tuple[str, int, int]
"""Where a function stands: its file, its first line and its last."""


def concluded(
    boundaries: Sequence[Finding], observation: Observation, verdict: Verdict, trace: Trace, rows: Sequence[Row] = ()
) -> list[Finding]:
    """The findings of the run, in the order of the ops that show them. Findings that no op shows stand last.

    The rounding that the last difference of a run shows may be its first op's. What shows before it has been told by then.

    `rows`: how far each boundary is from its reference, and how far it may be.
    """
    candidates = verdict.candidates(observation)
    behind = [_behind(finding, observation, candidates, _record(finding, trace)) for finding in boundaries]
    told = [finding for finding, _ in behind]
    drifted = any(finding.severity == "error" and finding.rule in EFFECTS for finding in boundaries)
    asked = _asked(candidates, Sound.of(trace, rows) if drifted else None)
    ops = [_weighed(finding, asked, choices=not drifted) for finding in _alone(distinct(candidates), told)]
    when = dict[tuple[str, str], float]()
    for candidate in candidates:
        here = _place(finding_of(candidate))
        when[here] = min(when.get(here, math.inf), culprit.shown(candidate).number)
    at = [(finding, math.inf if operation is None else operation.number) for finding, operation in behind]
    at += [(finding, when.get(_place(finding), math.inf)) for finding in ops]
    return [finding for finding, _ in sorted(at, key=lambda each: each[1])]


@dataclasses.dataclass(frozen=True)
class Sound:
    """What the noise runs explain in a run of which they do not explain all."""

    functions: frozenset[Place]  # those of which every call gave what it gives in float32
    wrong: frozenset[Place]  # all other functions
    modules: frozenset[str]  # of which every call gave what it gives in float32
    gradients: bool  # whether all of them are what they are in float32

    @classmethod
    def of(cls, trace: Trace, rows: Sequence[Row]) -> Sound:
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
        """Whether noise explains what a rounding comes to in an op: in its function or its module, or where gradients are all that can have it."""
        if operation.phase == "backward":
            return self.gradients
        if any(culprit.within(operation, place) for place in self.wrong):
            return False
        return operation.module in self.modules or any(culprit.within(operation, place) for place in self.functions)


def _asked(candidates: Sequence[Candidate], sound: Sound | None) -> set[tuple[str, str]]:
    """Places of roundings that the precision asks for. Where some boundary drifted, noise has explained what such a rounding comes to where it is
    `sound`, and nowhere else."""
    found, other = set[tuple[str, str]](), set[tuple[str, str]]()
    for candidate in candidates:
        meant = candidate.operation.plain or candidate.operation.converts
        here = sound is None or sound.at(culprit.shown(candidate))
        (found if meant and here else other).add(_place(finding_of(candidate)))
    return found if sound is None else found - other


def _behind(
    finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None
) -> tuple[Finding, Operation | None]:
    """A finding of the boundaries, with the op behind it where it has one, and the op that shows it. `record` is the tensor that it is about."""
    if finding.rule == "lost-update":
        return culprit.written(finding, observation), None
    wanted = finding.severity == "error" and finding.rule in EFFECTS
    return culprit.explained(finding, observation, candidates, record) if wanted else (finding, None)


def _record(finding: Finding, trace: Trace) -> Record | None:
    """The tensor of a function or a module that a finding is about."""
    keys = (f"{kind}:{finding.tensor}@{finding.step}" for kind in ("returned", "output"))
    return next((trace.records[key] for key in keys if key in trace.records), None)


def explained(finding: Finding, observation: Observation, candidates: list[Candidate]) -> Finding:
    """A finding of the boundaries, with the op behind it where it has one."""
    return _behind(finding, observation, candidates)[0]


def _weighed(finding: Finding, asked: Collection[tuple[str, str]], *, choices: bool) -> Finding:
    """`finding`, or a note where the noise runs, by which the boundaries are healthy, had the very rounding that it is about.

    Noise has the roundings that the precision asks for, of inputs and of what torch's own modules return. It does not have those that the user's
    code adds. `asked`: places of such roundings. What a choice makes of rounded scores is counted beside what it makes of disturbed ones;
    `choices`: all of these were as many.
    """
    amplified = finding.rule in AMPLIFIED and _place(finding) in asked
    if finding.severity == "error" and (amplified or (choices and finding.rule == "decision-flip" and _chooses(finding))):
        text = f"{finding.message}; noise runs show that correct rounding explains as much in this model"
        return dataclasses.replace(finding, severity="note", message=text)
    return finding


def _chooses(finding: Finding) -> bool:
    return finding.op.split(".")[1:2] in [[name] for name in BY_DIFFERENCE]


def _alone(ops: Iterable[Finding], told: Sequence[Finding]) -> Iterable[Finding]:
    """What the ops show and no finding of the boundaries says already."""
    causes = {_place(finding) for finding in told if finding.severity == "error"}
    rules = {finding.rule for finding in told}
    for finding in ops:
        if finding.rule not in OURS and not (finding.rule in WEIGHTS and finding.rule in rules) and _place(finding) not in causes:
            yield finding


def _place(finding: Finding) -> tuple[str, str]:
    """Which mechanism did it, on which line."""
    return finding.cause_rule or finding.rule, finding.source
