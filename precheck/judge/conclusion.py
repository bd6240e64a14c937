"""One verdict on one run: what its boundaries show and what its ops show, without saying a thing twice.

An error at a boundary is an effect, and the op behind it the cause. Where a rule has told the cause, the error names it. A cause whose effect no
boundary shows is an error all the same: an untrained network passes on little of what it will pass on once it is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from precheck.analysis.choices import BY_DIFFERENCE
from precheck.findings import Finding
from precheck.judge import culprit
from precheck.judge.ops import Verdict, distinct, finding_of
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Observation
from precheck.rules.rule import Candidate

EFFECTS = frozenset({"overflow", "nan", "accumulated-drift", "gradient-underflow", "decision-flip"})
"""Rules of boundaries whose errors have an op behind them."""
OURS = frozenset({"scaler-skip", "scaler-order", "scaler-collapse"})
"""Rules on how a training loop uses its scaler. The loop of a measurement is precheck's own: it looks for the largest loss scale by itself."""
WEIGHTS = frozenset({"lost-update", "missing-gradient"})
"""Rules on a parameter as a whole. A boundary and an op say the same of it, and the boundary says it of all parameters at once."""


AMPLIFIED = frozenset({"amplified-rounding", "cancellation"})
"""Rules on a rounding that later ops amplify."""


def concluded(boundaries: Sequence[Finding], observation: Observation, verdict: Verdict, trace: Trace) -> list[Finding]:
    """The findings of the run, in the order in which their causes happened; what has no cause among the ops stands last."""
    candidates = verdict.candidates(observation)
    told = [explained(finding, observation, candidates, _record(finding, trace)) for finding in boundaries]
    drifted = any(finding.severity == "error" and finding.rule in EFFECTS for finding in boundaries)
    asked = {_place(finding_of(candidate)) for candidate in candidates if candidate.operation.plain or candidate.operation.converts}
    ops = [finding if drifted else _weighed(finding, asked) for finding in _alone(distinct(candidates), told)]
    first = {_place(finding): number for number, finding in enumerate(distinct(candidates))}
    return sorted([*told, *ops], key=lambda finding: first.get(_place(finding), len(first)))


def _record(finding: Finding, trace: Trace) -> Record | None:
    """The tensor of a function or a module that a finding is about."""
    keys = (f"{kind}:{finding.tensor}@{finding.step}" for kind in ("returned", "output"))
    return next((trace.records[key] for key in keys if key in trace.records), None)


def explained(finding: Finding, observation: Observation, candidates: list[Candidate], record: Record | None = None) -> Finding:
    """A finding of the boundaries, with the op behind it where it has one; `record` is the tensor that it is about."""
    wanted = finding.severity == "error" and finding.rule in EFFECTS
    return culprit.explained(finding, observation, candidates, record) if wanted else finding


def _weighed(finding: Finding, asked: Collection[tuple[str, str]]) -> Finding:
    """`finding`, or a note where the noise runs, by which all boundaries are healthy, had the very rounding that it is about.

    Noise has the roundings that the precision asks for, of inputs and of what torch's own modules return, and not those that the user's code adds.
    `asked`: places of such roundings.
    What a choice makes of rounded scores is counted beside what it makes of disturbed ones.
    """
    amplified = finding.rule in AMPLIFIED and _place(finding) in asked
    if finding.severity == "error" and (amplified or (finding.rule == "decision-flip" and _chooses(finding))):
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
