"""A watched run's verdict: every rule on what its analysis shows."""

from __future__ import annotations

from collections.abc import Iterable

from precheck.analysis.facts import Fact, Part
from precheck.analysis.provenance import placed, via
from precheck.analysis.watched import Watched
from precheck.findings import Finding
from precheck.observe.shadow.operations import Observation, Operation, Past, Value
from precheck.observe.shadow.source import shortened
from precheck.rules import classes
from precheck.rules.rule import Candidate


class Verdict:
    """The verdict on a run that may be judged in parts, as it goes on. Of the faults of one rule and line the earliest is kept."""

    def __init__(self) -> None:
        self.run, self.rules = Watched(), [rule() for rule in classes()]
        self.told: dict[tuple[str, ...], Candidate] = {}
        self.waiting: dict[str, int] = {}  # rule and line of which the run has too few steps to tell, and how many would

    def settle(self, observation: Observation) -> None:
        """Judges `observation.judged`, which are let go of then."""
        for candidate in sorted(self._among(self.run.part(observation)), key=_when):
            self._keep(candidate)

    def _among(self, part: Part) -> list[Candidate]:
        return [candidate for rule in self.rules for candidate in rule.among(part)]

    def _keep(self, candidate: Candidate) -> None:
        operation = candidate.operation
        place = candidate.rule, operation.blamed, via(operation), operation.phase
        known = self.told.get(place)
        if known is not None and self.run.undetermined(known.fact):
            self.told.setdefault((*place, "unstable"), known)  # is no error in the end, and hides none
            known = None
        if known is None or _when(candidate) < _when(known):
            self.told[place] = candidate

    def candidates(self, observation: Observation) -> list[Candidate]:
        """What the rules find, in the order in which the causes happened, once the run has ended."""
        part = self.run.part(observation, last=True)
        found = [*self.told.values(), *self._among(part), *(each for rule in self.rules for each in rule.at_end(part))]
        for rule in self.rules:
            found = rule.revised(found, self.run.errors.unstable)
        self.waiting = {f"{each.rule} at {shortened(each.operation.blamed)}": each.needs for each in found if each.needs}
        return sorted(found, key=_when)

    def found(self, observation: Observation) -> list[Finding]:
        """The findings of a run, in the order in which their causes happened; one for each rule and line."""
        return distinct(self.candidates(observation))

    def unsettled(self) -> set[Value]:
        """Values whose lineage is asked for yet."""
        return self.run.unsettled()

    def past(self, value: Value) -> Past:
        """What is kept of a value's ancestors."""
        return self.run.past(value)

    def origin(self, value: Value) -> Operation | None:
        """The op that brought its error in."""
        return self.run.origin(value)

    def keep(self, values: set[Value]) -> None:
        """Only these are left."""
        self.run.keep(values, {fact for fact in _facts(self.told.values()) if fact is not None})
        for rule in self.rules:
            rule.keep(values)


def found(observation: Observation) -> list[Finding]:
    """The findings of a run of which every operation is there; one for each rule and line."""
    return Verdict().found(observation)


def _facts(candidates: Iterable[Candidate]) -> Iterable[Fact | None]:
    return (candidate.fact for candidate in candidates)


def _when(candidate: Candidate) -> int:
    return candidate.operation.number


def distinct(candidates: Iterable[Candidate]) -> list[Finding]:
    """Their findings, in their order; one for each rule and line."""
    found: dict[tuple[str, ...], Finding] = {}
    for candidate in candidates:
        finding = finding_of(candidate)
        found.setdefault((finding.rule, finding.source, finding.via, finding.phase), finding)
    return list(found.values())


def finding_of(candidate: Candidate) -> Finding:
    """A candidate as a finding."""
    operation = candidate.operation
    return Finding(
        candidate.rule, candidate.severity, f"{placed(operation)}: {candidate.message}", operation.phase,
        operation.title if "." in operation.name else "", operation.module, shortened(operation.blamed), operation.step, candidate.tensor,
        candidate.measured, candidate.limit, via=via(operation),
    )  # fmt: skip
