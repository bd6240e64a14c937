"""Codes whose rounding errors do not average out.

The mean of the rounding errors, in steps of the format, is compared with the mean that chance allows for so many elements.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.codes import BY_CHANCE, SKEWED, Miscoded
from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.observe.shadow.code_notes import Skewed
from precheck.rules.biased_rounding.about import ABOUT
from precheck.rules.rule import Rule


class BiasedRounding(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (SKEWED, BY_CHANCE)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Miscoded) and isinstance(fact.remark, Skewed):
            seen = fact.remark
            ways = ("towards zero", "away from zero") if seen.towards_zero else ("up", "down")
            where = ways[0] if seen.mean > 0 else ways[1]
            what = "noise was added, and the sum is not cut off" if seen.noisy else "numbers are cut off here, not rounded"
            return f"rounding errors have a mean of {abs(seen.mean):.2f} steps {where}, where rounding to nearest has none: {what}"
        return super().words(fact)
