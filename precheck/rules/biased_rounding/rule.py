"""Finds codes whose rounding errors do not average out.

The mean of the rounding errors, in steps of the format, is compared with the mean that chance explains for this number of elements. If calls round
stochastically with the same random numbers, the sum of their errors is compared with that of independent ones. Where numbers of one sign become zero
in eight bits, it is measured what their sum loses.
"""

from __future__ import annotations

from precheck.analysis.chance import DEVIATIONS
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.propagation.provenance import percent
from precheck.analysis.quantisation.quantisers import AGAIN, MEAN_ERROR, REPEATED, VANISHED, remark_of
from precheck.observe.shadow.quantisers.code_notes import RepeatedNoise, Skewed, Vanished
from precheck.rules.rule import Candidate, Rule


class BiasedRounding(Rule):
    limits = (MEAN_ERROR, DEVIATIONS, REPEATED, AGAIN, VANISHED)

    def words(self, fact: Fact) -> str:
        seen = remark_of(fact)
        if isinstance(seen, Skewed):
            ways = ("towards zero", "away from zero") if seen.towards_zero else ("up", "down")
            where = ways[0] if seen.mean > 0 else ways[1]
            what = "noise was added, and the sum is rounded, not truncated" if seen.noisy else "numbers are truncated here, not rounded"
            if seen.noisy and where == "towards zero":
                what = "noise was added, and carries into the bits that are kept less often than it should"
            return f"rounding errors have a mean of {abs(seen.mean):.2f} steps {where}, where rounding to nearest has none: {what}"
        if isinstance(seen, Vanished):
            return (f"{percent(seen.share)}% of these numbers become zero in {seen.dtype}, and {percent(seen.lost)}% of the sum of all is lost: "
                    "multiply by a scale first, and divide by it after the product")  # fmt: skip
        if isinstance(seen, RepeatedNoise):
            times = f"{seen.grown**0.5:.2g} times as large as that of independent errors"
            return f"{seen.calls} calls round stochastically with the same random numbers: the sum of their errors is {times}"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        seen = remark_of(candidate.fact)
        if isinstance(seen, RepeatedNoise):
            return "draw new random numbers in each call"
        if isinstance(seen, Skewed):
            noisy = "to round stochastically, add uniform noise of 0 to 1 steps, then take the floor or truncate the bits"
            return noisy if seen.noisy else "round before this cast, as by torch.round"
        return super().advice(candidate, readers, wide)
