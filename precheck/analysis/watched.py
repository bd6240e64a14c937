"""Analyses a watched run part by part: makes facts for the rules, and keeps what later parts need to know of values."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection

from precheck.analysis.facts import Fact, Part
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.propagation.causes import MADE_BY_OP
from precheck.analysis.propagation.provenance import Origins
from precheck.analysis.quantisation import quantisers
from precheck.analysis.rounding.errors import Errors
from precheck.analysis.rounding.recurrence import Recurrence
from precheck.analysis.unrepresentable import exceptions, nonfinite, zeros
from precheck.observe.shadow.operations import Observation, Value


class RunAnalysis:
    """The analysis of a run in parts, while it goes on. Each part is analysed once, together with the ops that follow it.

    For each value that later ops can read it keeps where the error came from, which facts explain it, and whether Inf or NaN spoil it.
    """

    def __init__(self) -> None:
        self.origins, self.spread, self.lost_tensors = Origins(), nonfinite.Spread(), zeros.LostTensors()
        self.errors, self.recurrence = Errors(self.origins), Recurrence()

    def part(self, observation: Observation, *, last: bool = False) -> Part:
        """The facts on `observation.judged`. With `last` also those that are known only when the run has ended."""
        readers = observation.consumers()
        roots = self.spread.roots(observation, readers)
        spoiled = self.spread.spoiled  # values that follow from Inf and NaN have no fault of their own
        lost = self.lost_tensors.found(observation, spoiled, readers)
        wrong = self.errors.facts(observation, spoiled, readers)  # also traces the origins
        found: list[Fact] = [*(self._traced(nonfinite.fact_on_root(root, observation), wrong, observation) for root in roots), *lost, *wrong]
        found += self.recurrence.facts(observation, readers, spoiled | self.errors.explained())
        found += quantisers.facts(observation)
        if last:
            found += [*zeros.starved_gradients(observation, spoiled), *exceptions.facts_behind_exception(observation)]
        facts: dict[str, list[Fact]] = defaultdict(list)
        for fact in found:
            facts[fact.rule].append(fact)
        return Part(observation, readers, spoiled, self.origins, facts)

    def _traced(self, fact: Fact, wrong: Collection[Fact], observation: Observation) -> Fact:
        """Returns a fact on Inf or NaN. If rounding moved the argument onto a pole or to zero, and a fact among `wrong` explains half of that
        error, it names the rule and the op of that fact, so that both become one finding. What came on another way has its own cause."""
        argument = None
        if isinstance(fact, nonfinite.Broken) and fact.how == "moved onto a pole" and fact.root.maker is not None:
            argument = fact.root.maker.drifting
        elif isinstance(fact, zeros.Missed) and fact.rule in ("amplified-rounding", "cancellation"):
            argument = fact.zero
        explaining = () if argument is None else self.errors.explanations.get(argument, ())
        above = next((each for each in explaining if each in wrong and each is not None and each.operation is not fact.operation), None)
        if argument is None or above is None:
            return fact
        made = Attribution(argument, observation.operations)
        half = max(made.through[above.operation], made.shares[above.operation]) >= MADE_BY_OP
        return dataclasses.replace(fact, rule=above.rule, operation=above.operation) if half else fact

    def keep(self, values: set[Value], reported: set[Fact]) -> None:
        """Forgets all other values. `reported`: facts that findings have been made from."""
        self.origins.known = {value: operation for value, operation in self.origins.known.items() if value in values}
        for each in (self.spread, self.errors, self.recurrence):
            each.keep(values)
        followed = {fact for above in self.errors.explanations.values() for fact in above if fact is not None}
        for facts in (self.errors.unstable, self.errors.handed_on):
            facts &= {*reported, *self.errors.suspects, *followed}
