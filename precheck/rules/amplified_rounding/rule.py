"""One rounding that a later op makes so large that the result has lost its digits."""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.calls import ADDED, OWN, OWNED, ROUNDED, OwnError
from precheck.analysis.errors import DIGIT, SHAKEN, UNSTABLE
from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.analysis.lineage import placed
from precheck.analysis.reach import DEAD as SHOWN
from precheck.analysis.reach import GARBAGE, ROUNDINGS
from precheck.analysis.rounding import AMPLIFICATION, DEAD, PLAIN, PLAIN_ROUNDINGS, Misrounded
from precheck.rules.amplified_rounding.about import ABOUT
from precheck.rules.rule import HEALED, Rule


class AmplifiedRounding(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (
        DEAD, AMPLIFICATION, PLAIN, PLAIN_ROUNDINGS, UNSTABLE, SHAKEN, DIGIT, ROUNDINGS, SHOWN, GARBAGE, ADDED, ROUNDED, OWNED, OWN,
    )  # fmt: skip

    def words(self, fact: Fact) -> str:
        if not isinstance(fact, Misrounded) or fact.how not in ("digits lost", "amplified"):
            return super().words(fact)
        value = fact.value
        text = f"its rounding ({fact.shown.drift_in:.2g} relative) is amplified {fact.gain:.0f} times by {placed(fact.shown)}: "
        lost = f"{100 * value.dead:.0f} % of the elements keep no digit"
        text += lost if fact.how == "digits lost" else f"off by {value.drift / value.roundoff:.0f} roundings"
        return text + (HEALED if fact.healed else "")

    def own_error(self, fact: OwnError) -> str:
        rounded = fact.operation.outputs[0].dtype
        return f"a rounding to {rounded} here ({fact.own:.2g} relative) is amplified {fact.off / fact.own:.0f} times by {placed(fact.shown)}"
