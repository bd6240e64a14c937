"""A watched run's verdict, op by op: every rule that can be told without a golden."""

from __future__ import annotations

from collections.abc import Iterable

from precheck.findings import Finding
from precheck.judge import absorption, causes, choices, events, gradients, raised, scaling, updates
from precheck.judge.events import Suspect
from precheck.judge.lineage import Origins, placed, via
from precheck.judge.rounding import Rounding
from precheck.observe.shadow.operations import Observation, Operation, Past, Value
from precheck.observe.shadow.source import shortened


class Verdict:
    """The verdict on a run that may be judged in parts, as it goes on: each part once, with what follows it at hand.

    A part hands on to the next what is known of the values that are left: where errors in them came from, which suspects they follow
    from, whether they are spoiled. Of the faults of one rule and line the earliest is kept.
    """

    def __init__(self) -> None:
        self.origins, self.spread, self.floods, self.copies = Origins(), events.Spread(), events.Floods(), gradients.Copies()
        self.rounding = Rounding(self.origins)
        self.told: dict[tuple[str, ...], Suspect] = {}
        self.swallowed: dict[tuple[str, ...], Suspect] = {}  # additions that were absorbed

    def settle(self, observation: Observation) -> None:
        """Judges `observation.judged`, which are let go of then."""
        for table, found in zip((self.told, self.swallowed), self._judged(observation), strict=True):
            for suspect in sorted(found, key=_when):
                self._keep(table, suspect)

    def _judged(self, observation: Observation) -> tuple[list[Suspect], list[Suspect]]:
        """What the rules find that look at operations, and the additions that were absorbed."""
        readers = observation.consumers()
        roots = self.spread.roots(observation, readers)
        spoiled = self.spread.spoiled  # what follows from Inf and NaN is no fault of its own
        rounding = self.rounding.judged(observation, spoiled, readers)  # traces the origins on its way
        choice = [each for each in choices.flipped(observation, self.origins) if not spoiled.intersection(each.operation.outputs)]
        self.copies.follow(observation.judged)
        found = [*events.nonfinite(roots), *self.floods.found(observation, spoiled, readers), *rounding, *choice]
        return found, absorption.absorbed(observation, readers)

    def _keep(self, table: dict[tuple[str, ...], Suspect], suspect: Suspect) -> None:
        place = suspect.rule, suspect.operation.blamed, via(suspect.operation), suspect.operation.phase
        known = table.get(place)
        if known is not None and known in self.rounding.unstable:
            table.setdefault((*place, "unstable"), known)  # is no error in the end, and hides none
            known = None
        if known is None or _when(suspect) < _when(known):
            table[place] = suspect

    def suspects(self, observation: Observation) -> list[Suspect]:
        """What the rules find, in the order in which the causes happened, once the run has ended."""
        found, swallowed = self._judged(observation)
        self.rounding.doubt()
        unarrived = updates.unarrived(observation)
        steps = {suspect.operation.source for suspect in unarrived}  # a step by hand that is lost is an addition that was absorbed
        found = [
            *self.told.values(),
            *found,
            *events.starved_gradients(observation, self.spread.spoiled),
            *(suspect for suspect in (*self.swallowed.values(), *swallowed) if suspect.operation.source not in steps),
            *self.copies.missing(observation),
            *unarrived,
            *updates.stalled(observation),
            *scaling.faults(observation),
            *raised.behind(observation),
        ]
        return sorted(found, key=_when)

    def found(self, observation: Observation) -> list[Finding]:
        """The findings of a run, in the order in which their causes happened; one for each rule and line."""
        return distinct(self.suspects(observation))

    def unsettled(self) -> set[Value]:
        """Values whose lineage is asked for yet."""
        return self.spread.open

    def past(self, value: Value) -> Past:
        return causes.past(value)

    def origin(self, value: Value) -> Operation | None:
        return self.origins.of(value)

    def keep(self, values: set[Value]) -> None:
        """Only these are left."""
        self.origins.known = {value: operation for value, operation in self.origins.known.items() if value in values}
        for each in (self.spread, self.copies, self.rounding):
            each.keep(values)
        followed = {suspect for above in self.rounding.under.values() for suspect in above}
        self.rounding.unstable &= {*self.told.values(), *self.rounding.suspects, *followed}


def suspects(observation: Observation) -> list[Suspect]:
    """What the rules find in a run of which every operation is there."""
    return Verdict().suspects(observation)


def found(observation: Observation) -> list[Finding]:
    """The findings of such a run; one for each rule and line."""
    return Verdict().found(observation)


def _when(suspect: Suspect) -> int:
    return suspect.operation.number


def distinct(suspects: Iterable[Suspect]) -> list[Finding]:
    """Their findings, in their order; one for each rule and line."""
    found: dict[tuple[str, ...], Finding] = {}
    for suspect in suspects:
        finding = finding_of(suspect)
        found.setdefault((finding.rule, finding.source, finding.via, finding.phase), finding)
    return list(found.values())


def finding_of(suspect: Suspect) -> Finding:
    operation = suspect.operation
    return Finding(
        suspect.rule, suspect.severity, f"{placed(operation)}: {suspect.message}", operation.phase, operation.title if "." in operation.name else "",
        operation.module, shortened(operation.blamed), operation.step, suspect.tensor, suspect.measured, suspect.limit, via=via(operation),
    )  # fmt: skip
