"""Judges flips, decisions that differ from float32's: routing, arg-max, comparisons, casts to integers.

The reference follows the run's decisions, so a flip makes no drift. The number of flips is compared with that of the noise runs, which shows how
many correct rounding causes at the same place after the same history.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from precheck.analysis.chance import CHANCE
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.noise import FAIL, MOST
from precheck.observe.records import Trace
from precheck.precisions import Precision

FLIPPED_SHARE = Limit(8.0, "unit roundoffs")
"""The smallest share of a place's decisions that is reported where noise flips none. Two numbers at random within their own magnitude change their
order with a probability of about 2 u if both are rounded. Four times as many are beyond any single rounding. Where noise flips some, these show how
many decisions rounding can reach, and the number of all does not matter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One op in one module call: how many decisions it made, how many flipped, and how many flipped in all noise runs together."""

    call: str
    op: str
    total: int
    flipped: int
    expected: int
    samples: int

    @property
    def name(self) -> str:
        """As in `Trace.flips`."""
        return f"{self.call}|{self.op}"

    def doubtful(self, precision: Precision) -> bool:
        """Whether more noise runs might show too many flips."""
        within_reach = self.expected * MOST / self.samples
        explained = most_by_chance(round(within_reach), MOST) if self.expected else FLIPPED_SHARE * precision.roundoff * self.total
        return self.flipped > max(explained, FAIL * self.expected / self.samples)

    def unsettled(self, precision: Precision) -> bool:
        """Whether the noise runs so far do not decide. Too many flips beside few noise runs have a probability of `CHANCE` already."""
        return self.doubtful(precision) and not self.too_many(precision)

    def too_many(self, precision: Precision) -> bool:
        return self.doubtful(precision) and self.flipped > most_by_chance(self.expected, self.samples)


def places(reference: Trace, noises: Sequence[Trace]) -> list[Place]:
    """Every place where the reference's own decisions differ from those of the run that it follows."""
    found = []
    for name, (flipped, total) in reference.flips.items():
        if flipped:
            call, _, op = name.partition("|")
            found.append(Place(call, op, total, flipped, sum(noise.flips.get(name, (0, 0))[0] for noise in noises), len(noises)))
    return found


def most_by_chance(expected: int, samples: int) -> int:
    """The number of flips that is exceeded with probability `CHANCE`, if `samples` noise runs had `expected` and the run has FAIL times their rate.

    Counts have a Poisson distribution with an unknown rate. With a flat prior the prediction is negative binomial. Flips come in pairs (two elements
    change places), so pairs are counted.
    """
    pairs = expected / 2 + 1
    keep = samples / (samples + FAIL)
    probability = keep**pairs if pairs * math.log(keep) > -700 else 0.0
    if probability == 0.0:  # for large counts, the normal approximation of the same distribution
        mean = pairs * FAIL / samples
        return math.ceil(2 * (mean + 4.8 * math.sqrt(mean * (1 + FAIL / samples))))
    total, count = probability, 0
    while total < 1 - CHANCE:
        probability *= (pairs + count) / (count + 1) * (1 - keep)
        count += 1
        total += probability
    return 2 * count
