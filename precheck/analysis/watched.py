"""The analysis of a watched run, part by part: facts for the rules, and what is known of values that are carried on."""

from __future__ import annotations

from collections import defaultdict

from precheck.analysis import causes, codes, exceptions, nonfinite, zeros
from precheck.analysis.errors import Errors
from precheck.analysis.facts import Fact, Part
from precheck.analysis.provenance import Origins
from precheck.analysis.recurrence import Recurrence
from precheck.observe.shadow.operations import Observation, Operation, Past, Value


class Watched:
    """A run that may be analysed in parts, as it goes on: each part once, with what follows it at hand.

    A part hands on to the next what is known of the values that are left: where their errors came from, which facts explain them, and whether Inf
    or NaN spoil them.
    """

    def __init__(self) -> None:
        self.origins, self.spread, self.floods = Origins(), nonfinite.Spread(), zeros.Floods()
        self.errors, self.recurrence = Errors(self.origins), Recurrence()

    def part(self, observation: Observation, *, last: bool = False) -> Part:
        """The facts of `observation.judged`; with `last` those too that are known once the run has ended."""
        readers = observation.consumers()
        roots = self.spread.roots(observation, readers)
        spoiled = self.spread.spoiled  # what follows from Inf and NaN is no fault of its own
        found: list[Fact] = [nonfinite.made_by(root, observation) for root in roots]
        found += self.floods.found(observation, spoiled, readers)
        found += self.errors.facts(observation, spoiled, readers)  # traces the origins on its way
        found += self.recurrence.facts(observation, readers, spoiled | self.errors.explained())
        found += codes.facts(observation)
        if last:
            found += [*zeros.starved_gradients(observation, spoiled), *exceptions.behind(observation)]
        facts: dict[str, list[Fact]] = defaultdict(list)
        for fact in found:
            facts[fact.mechanism].append(fact)
        return Part(observation, readers, spoiled, self.origins, facts)

    def unsettled(self) -> set[Value]:
        """Values whose lineage is asked for yet."""
        return self.spread.open

    def past(self, value: Value) -> Past:
        """What is kept of a value's ancestors."""
        return causes.past(value)

    def origin(self, value: Value) -> Operation | None:
        """The op that brought its error in."""
        return self.origins.of(value)

    def undetermined(self, fact: Fact | None) -> bool:
        """Whether float32 does not determine what follows from it either."""
        return fact in self.errors.unstable

    def keep(self, values: set[Value], told: set[Fact]) -> None:
        """Only these values are left; `told` are facts that findings have been made of."""
        self.origins.known = {value: operation for value, operation in self.origins.known.items() if value in values}
        for each in (self.spread, self.errors, self.recurrence):
            each.keep(values)
        followed = {fact for above in self.errors.under.values() for fact in above if fact is not None}
        self.errors.unstable &= {*told, *self.errors.suspects, *followed}
