"""Runs every rule on a watched run, and returns one finding for each rule and line: the earliest of the most severe."""

from __future__ import annotations

from collections.abc import Iterable

from precheck.analysis import causes
from precheck.analysis.facts import Part
from precheck.analysis.provenance import low_since, placed, via
from precheck.analysis.watched import RunAnalysis
from precheck.findings import Finding
from precheck.observe.shadow.operations import Observation, Operation, Past, Value
from precheck.observe.shadow.source import shortened
from precheck.rules import classes
from precheck.rules.rule import Candidate, Rule

_SEVERITIES = ("error", "warning", "note")


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
            place = candidate.rule, operation.blamed, via(operation), operation.phase
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
        self.waiting = {f"{each.rule} at {shortened(each.operation.blamed)}": each.needs for each in found if each.needs}
        return sorted(found, key=_when)

    def found(self, observation: Observation) -> list[Finding]:
        """The findings of a run, in the order in which their causes happened; one for each rule and line."""
        return distinct(self.candidates(observation))

    def unsettled(self) -> set[Value]:
        """Values whose ancestors are still needed for a verdict."""
        return self.analysis.spread.open

    def past(self, value: Value) -> Past:
        """A summary of a value's ancestors, which is kept when they are dropped."""
        return causes.past(value)

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
    candidate.advice = rule.advice(candidate, part.readers, "float64" if part.observation.exact else "float32")
    return candidate


def _when(candidate: Candidate) -> int:
    return candidate.operation.number


def _rank(candidate: Candidate) -> tuple[int, int]:
    """The most severe first, and of those the earliest. What did no harm in one call must not hide the harm of a later one."""
    return _SEVERITIES.index(candidate.severity), _when(candidate)


def distinct(candidates: Iterable[Candidate]) -> list[Finding]:
    """Turns candidates into findings in the same order; one for each rule and line."""
    found: dict[tuple[str, ...], tuple[Candidate, Finding]] = {}
    for candidate in candidates:
        finding = finding_of(candidate)
        place = finding.rule, finding.source, finding.via, finding.phase
        if place not in found or _rank(candidate) < _rank(found[place][0]):
            found[place] = candidate, finding
    return [finding for _, finding in sorted(found.values(), key=lambda pair: _when(pair[0]))]


def finding_of(candidate: Candidate) -> Finding:
    """Turns a candidate into a finding."""
    operation = candidate.operation
    return Finding(
        candidate.rule, candidate.severity, f"{placed(operation)}{low_since(operation)}: {candidate.message}", operation.phase,
        operation.title if "." in operation.name else "", operation.module, shortened(operation.blamed), operation.step, candidate.tensor,
        candidate.measured, candidate.limit, via=via(operation), advice=candidate.advice,
    )  # fmt: skip
