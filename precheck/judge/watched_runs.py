"""Runs every rule on a watched run, and returns one finding for each rule and line: the earliest of the most severe. Merges those of all ranks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from precheck.analysis.facts import Part
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.provenance import library_line, low_since, placed
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.function_limits import OWNED
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.analysis.watched import RunAnalysis
from precheck.findings import Finding
from precheck.observe.shadow.op_notes import Past
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import shortened
from precheck.rules import classes
from precheck.rules.advice import wide_format
from precheck.rules.rule import Candidate, Rule

_SEVERITIES = ("error", "warning", "note")
AMPLIFIED = frozenset({"amplified-rounding", "cancellation"})
"""Rules on a rounding that later ops amplify."""


class RunJudge:
    """The verdict on a run, which can be judged in parts while it goes on. Keeps one candidate for each rule and line, the earliest of the worst."""

    def __init__(self) -> None:
        self.analysis, self.rules = RunAnalysis(), [rule() for rule in classes()]
        self.earliest: dict[tuple[str, ...], Candidate] = {}
        self.waiting: dict[str, int] = {}  # rules and lines that need more steps for a verdict, and how many they need

    def settle(self, observation: Observation) -> None:
        """Judges the operations of `observation.judged`. They are not needed afterwards."""
        for candidate in sorted(self._among(self.analysis.part(observation)), key=_when):
            operation = candidate.operation
            place = candidate.rule, operation.blamed, library_line(operation), operation.phase
            known = self.earliest.get(place)
            if known is not None and known.fact in self.analysis.errors.unstable:
                self.earliest.setdefault((*place, "unstable"), known)  # this one is no error in the end, so it must not hide a later one
                known = None
            if known is None or _rank(candidate) < _rank(known):
                self.earliest[place] = candidate

    def _among(self, part: Part) -> list[Candidate]:
        return [_advised(rule, candidate, part) for rule in self.rules for candidate in rule.among(part)]

    def candidates(self, observation: Observation) -> list[Candidate]:
        """Ends the judging. Returns the candidates of all rules, in the order in which the causes happened."""
        part = self.analysis.part(observation, last=True)
        found = [*self.earliest.values(), *self._among(part), *(_advised(rule, each, part) for rule in self.rules for each in rule.at_end(part))]
        for rule in self.rules:
            found = rule.revised(found, self.analysis.errors.unstable)
        faults = {each.operation.blamed for each in found if each.severity == "error"}
        found = [each for each in found if not (_harmless(each) and each.operation.blamed in faults)]
        self.waiting = {f"{each.rule} at {shortened(each.operation.blamed)}": each.needs for each in found if each.needs}
        return sorted(found, key=_when)

    def found(self, observation: Observation) -> list[Finding]:
        """The findings of a run that no noise runs stand beside, in the order in which their causes happened; one for each rule and line."""
        return distinct(map(_warned, self.candidates(observation)))

    def unsettled(self) -> set[Value]:
        """Values whose ancestors are still needed for a verdict."""
        return self.analysis.spread.open

    def past(self, value: Value) -> Past:
        """A summary of a value's ancestors, which is kept when they are dropped."""
        return causes.summary_of_ancestors(value)

    def origin(self, value: Value) -> Operation | None:
        return self.analysis.origins.of(value)

    def keep(self, values: set[Value]) -> None:
        self.analysis.keep(values, {each.fact for each in self.earliest.values() if each.fact is not None})
        for rule in self.rules:
            rule.keep(values)


def found(observation: Observation) -> list[Finding]:
    """The findings of a run whose operations were all kept; one for each rule and line."""
    return RunJudge().found(observation)


def _advised(rule: Rule, candidate: Candidate, part: Part) -> Candidate:
    """The candidate, with what to change on its line."""
    candidate.advice = rule.advice(candidate, part.readers, wide_format(part.observation))
    return candidate


def _harmless(candidate: Candidate) -> bool:
    """Whether a candidate says of a rounding that no result is wrong because of it. It is left out beside an error on the same line, which it seems
    to contradict."""
    return isinstance(candidate.fact, Misrounded) and candidate.fact.healed and candidate.severity == "note"


def _when(candidate: Candidate) -> int:
    return candidate.operation.number


def _rank(candidate: Candidate) -> tuple[int, int]:
    """The most severe first, and of those the earliest. What did no harm in one call must not hide the harm of a later one."""
    return _SEVERITIES.index(candidate.severity), _when(candidate)


CALLS = 3
"""The most further calls of a function that a finding on its line names."""


def distinct(candidates: Iterable[Candidate]) -> list[Finding]:
    """Turns candidates into findings in the same order; one for each rule and line."""
    found: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        operation = candidate.operation
        phase = "forward" if operation.phase == "data" else operation.phase  # the same line, before the model's first call or after it
        place = candidate.rule, shortened(operation.blamed), library_line(operation), phase
        found.setdefault(place, []).append(candidate)
    chosen = [(min(each, key=_rank), each) for each in found.values()]
    return [_with_calls(finding_of(first), first, each) for first, each in sorted(chosen, key=lambda pair: _when(pair[0]))]


def _with_calls(finding: Finding, first: Candidate, same: Sequence[Candidate]) -> Finding:
    """The finding, with the other calls of its line's function that have the same fault, as severe."""
    lines = [each.operation.site.lines for each in same if each.operation.site is not None and each.severity == first.severity]
    own = first.operation.site.lines if first.operation.site is not None else []
    others = list(dict.fromkeys(shortened(each[0]) for each in lines if each and each[0] not in own))
    if not own or not others:
        return finding
    more = f" and {len(others) - CALLS} more" if others[CALLS:] else ""
    return dataclasses.replace(finding, message=f"{finding.message}; the same when called at {', '.join(others[:CALLS])}{more}")


def finding_of(candidate: Candidate) -> Finding:
    """Turns a candidate into a finding."""
    operation = candidate.operation
    where = ", in the backward pass" if operation.phase == "backward" else ""  # its line has no such op
    return Finding(
        candidate.rule, candidate.severity, f"{placed(operation)}{where}{low_since(operation)}: {candidate.message}", operation.phase,
        operation.title if "." in operation.name else "", operation.module, shortened(operation.blamed), operation.step, candidate.tensor,
        candidate.measured, candidate.limit, via=library_line(operation), advice=candidate.advice,
    )  # fmt: skip


def required(candidate: Candidate) -> bool:
    """Whether a candidate is a rounding that the precision requires, which later ops amplify.

    Noise runs contain it, so what it does to a boundary is in that boundary's floor. An error beyond the floor has another cause, if there is one.
    """
    return candidate.rule in AMPLIFIED and in_noise(candidate)


def in_noise(candidate: Candidate) -> bool:
    """Whether noise runs contain the rounding that is blamed: a module of torch's own made it, or a conversion that the user asked for.

    It also counts if the op reads what such a module has rounded, and its own rounding is no larger than that error. Errors add up as squares, so
    without the op's rounding at least 1/√2 of the error would be left. This does not hold if the function of the op has made the error itself: a
    difference removes what neighbouring elements share of an input's error. It removes no rounding, since roundings are independent.

    The error of an op in an earlier step arrives through the weights. Noise runs update weights too, and round the gradients that autograd's own ops
    make.
    """
    operation = candidate.operation
    if operation.plain or operation.converts or (operation.derived and operation.step < shown(candidate).step):
        return True
    if _made_in_call(operation, shown(candidate)):
        return False
    carried = operation.drifting if isinstance(candidate.fact, Misrounded) and candidate.fact.how in ("digits lost", "amplified") else None
    if carried is None or attribution.own_error(operation, operation.outputs[0]) > operation.drift_in:
        return False
    behind = causes.error_source(carried)
    return behind is not None and (behind.plain or behind.step < operation.step)


def _made_in_call(operation: Operation, showing: Operation) -> bool:
    """Whether both ops are in one call of a user's function, which has made half of the square of the second one's error itself."""
    same = operation.call != 0 and operation.call == showing.call
    return same and any(OWNED * value.drift**2 <= value.call_error**2 < math.inf for value in showing.outputs[:1])


def shown(candidate: Candidate) -> Operation:
    """The op at which a candidate's error shows. The cause may come long before it."""
    return candidate.fact.shown if isinstance(candidate.fact, (Misrounded, OwnError)) else candidate.operation


def _warned(candidate: Candidate) -> Candidate:
    """An error as a warning, if one of torch's own modules made the rounding: correct code rounds there too, and noise runs tell what that does."""
    if candidate.severity != "error" or candidate.operation.converts or not required(candidate):
        return candidate
    text = f"{candidate.message}; the precision asks for this rounding, and measure() tells whether noise runs explain what it does"
    return dataclasses.replace(candidate, severity="warning", message=text)


def merged(findings: Mapping[int, Sequence[Finding]], size: int) -> list[Finding]:
    """Returns the findings of all ranks. Those of the same rule and line become one, with the words of the first rank."""
    by_place: dict[tuple[object, ...], dict[int, Finding]] = {}
    for rank in sorted(findings):
        for finding in findings[rank]:
            place = finding.rule, finding.severity, finding.phase, finding.source, finding.via
            by_place.setdefault(place, {}).setdefault(rank, finding)
    return [_named(found, size) for found in by_place.values()]


def _named(found: dict[int, Finding], size: int) -> Finding:
    ranks, first = tuple(found), next(iter(found.values()))
    head, *rest = first.message.split("\n")
    return dataclasses.replace(first, ranks=ranks, message="\n".join([f"{head} ({_words(ranks, size)})", *rest]))


def _words(ranks: tuple[int, ...], size: int) -> str:
    if len(ranks) == size:
        return f"on all {size} ranks" if size > 2 else "on both ranks"
    return f"on rank {ranks[0]}" if len(ranks) == 1 else f"on ranks {', '.join(map(str, ranks))}"
