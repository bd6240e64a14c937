"""A subtraction of near-equals, stored low."""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.attribution import GROWN
from precheck.analysis.calls import OWN, OWNED, ROUNDED, OwnError
from precheck.analysis.errors import UNSTABLE
from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.analysis.reach import GARBAGE, ROUNDINGS, WRONG
from precheck.analysis.rounding import DEAD, PLAIN, SUM_ROUNDINGS, Misrounded
from precheck.rules.cancellation.about import ABOUT
from precheck.rules.rule import Rule, difference


class Cancellation(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (PLAIN, SUM_ROUNDINGS, DEAD, UNSTABLE, ROUNDINGS, GARBAGE, WRONG, ROUNDED, OWNED, OWN, GROWN)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Misrounded) and fact.how == "a product":
            return f"the terms of this product cancel: it is {100 * fact.value.drift:.2g} % off, its factors {100 * fact.shown.drift_in:.2g} %"
        if isinstance(fact, Misrounded) and fact.operation is fact.shown:
            return difference(fact)
        return super().words(fact)

    def own_error(self, fact: OwnError) -> str:
        return f"a difference of nearly equal numbers, in {fact.operation.outputs[0].dtype}"
