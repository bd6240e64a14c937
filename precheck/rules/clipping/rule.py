"""Finds codes that are clipped to the format's largest number, become zero, or waste half of their bits, because their scale does not fit the tensor.

The error of the clipped elements is compared with the error of rounding. For a delayed scale the rule counts the calls in which it lags behind.
"""

from __future__ import annotations

import math
from collections.abc import Set

from precheck.analysis.chance import CHANCE
from precheck.analysis.facts import Fact
from precheck.analysis.propagation.provenance import percent
from precheck.analysis.quantisation.quantisers import CLIPPED, LEAST_CLIPPED, MOSTLY, WASTED, remark_of
from precheck.observe.shadow.quantisers.code_notes import Clipped, Coarse, Flushed, Late
from precheck.ops import CASTS
from precheck.rules.rule import Candidate, Rule
from precheck.words import digits


class Clipping(Rule):
    limits = (CLIPPED, LEAST_CLIPPED, MOSTLY, WASTED, CHANCE)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Drops the finding on a cast without a scale where `underflow` reports the same cast."""
        flushed = {each.operation.blamed for each in found if each.rule == "underflow" and each.severity == "error"}
        return [each for each in found if not (_without_scale(each) and each.operation.blamed in flushed)]

    def words(self, fact: Fact) -> str:
        seen = remark_of(fact)
        if isinstance(seen, Clipped):
            lags = seen.clips < MOSTLY * seen.calls
            why = f"the scale lags behind in {seen.clips} of {seen.calls} casts" if lags else "the scale does not fit this tensor"
            why = "it is cast without a scale" if fact.operation.base in CASTS else why
            costs = f"this loses {percent(seen.lost)}% of the tensor, and rounding loses {percent(seen.rounding)}%"
            if math.isinf(seen.greatest):
                return f"all numbers lie beyond an end at 0, and become 0: {costs}"
            if seen.greatest <= 1:
                return f"{percent(seen.share)}% of the elements become the format's largest number, though none is greater than that: {costs}"
            return (f"{percent(seen.share)}% of the elements are clipped, the greatest from {digits(seen.greatest, 3)} times the format's largest "
                    f"number: {costs}; {why}")  # fmt: skip
        if isinstance(seen, Flushed):
            return (f"{percent(seen.share)}% of these scales become 0 by this cast, and what is quantised under them is lost: they "
                    f"make {percent(seen.lost)}% of the norm of all scales. Divide the scales by one for the whole tensor first")  # fmt: skip
        if isinstance(seen, Coarse):
            made = "this scale was made for numbers" if seen.scaled else "there is no scale, and the format goes up to numbers"
            return (f"{made} {1 / seen.share:.2g} times as large as the greatest of this tensor, so half of the bits "
                    f"of each code are 0: this loses {percent(seen.lost)}% of the tensor, and a scale of its own would lose "
                    f"{percent(seen.rounding)}%")  # fmt: skip
        if isinstance(seen, Late):
            return _late(seen)
        return super().words(fact)


def _without_scale(candidate: Candidate) -> bool:
    seen = remark_of(candidate.fact)
    return isinstance(seen, Coarse) and not seen.scaled


def _late(seen: Late) -> str:
    """The message on a delayed scale that lags behind."""
    often = " and ".join(f"too {word} in {count}" for word, count in (("small", seen.small), ("large", seen.large)) if count)
    if seen.grown > 1:
        worst = f"the {seen.operand} had grown by {digits(seen.grown, 3)} times, and {percent(seen.clipped)}% of its elements were clipped"
    else:
        worst = f"the {seen.operand} had become {digits(1 / seen.grown, 3)} times smaller, and {percent(seen.zeroed)}% of its elements became 0"
    return (f"the scale of this product's {seen.operand} was taken from earlier calls, and was {often} of {seen.calls} calls. At worst {worst}; "
            f"that lost {percent(seen.lost)}% of it, where a scale of this call loses {percent(seen.rounding)}%")  # fmt: skip
