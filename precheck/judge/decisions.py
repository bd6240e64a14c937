"""Decisions that fell otherwise than in float32: routing, arg-max, comparisons, casts to integers.

The reference follows the run's decisions, so a flip never looks like drift. Whether there are too many is judged by count:
against the flips of the noise runs, which are what correct rounding causes at the same place after the same history.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from precheck.findings import Finding
from precheck.judge.noise import FAIL
from precheck.observe.records import Trace
from precheck.precisions import Precision

CHANCE = 1e-6
"""Of accusing a place whose flips come at FAIL times the rate of the noise runs' flips."""
SHARE = 8.0
"""Share of a place's decisions, in unit roundoffs, below which nothing is said. Two values that lie anywhere within their own
magnitude change order with a probability of about 2 u when both are rounded; four times that is beyond any single rounding."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One op in one module call, with its decisions: how many, how many flipped, and how many did in all noise runs together."""

    call: str
    op: str
    total: int
    flipped: int
    expected: int
    samples: int

    def doubtful(self, precision: Precision) -> bool:
        """Whether more noise runs might show that there are too many."""
        return self.flipped > SHARE * precision.roundoff * self.total and self.flipped > FAIL * self.expected / self.samples

    def too_many(self, precision: Precision) -> bool:
        return self.doubtful(precision) and self.flipped > _most(self.expected, self.samples)


def places(reference: Trace, noises: Sequence[Trace]) -> list[Place]:
    """Every place where the reference would have decided otherwise than the run that it follows."""
    found = []
    for name, (flipped, total) in reference.flips.items():
        if flipped:
            call, _, op = name.partition("|")
            found.append(Place(call, op, total, flipped, sum(noise.flips.get(name, (0, 0))[0] for noise in noises), len(noises)))
    return found


def flipped(suspects: Iterable[Place], precision: Precision) -> list[Finding]:
    """The first place with too many flips, as an error; those after it may follow from it."""
    first = next((place for place in suspects if place.too_many(precision)), None)
    if first is None:
        return []
    where = f"in {first.call}" if first.call else "in the model's own forward"
    return [
        Finding(
            "decision-flip", "error",
            f"{first.op} {where}: {first.flipped} of {first.total} decisions ({first.flipped / first.total:.1%}) fell otherwise under "
            f"{precision} than in float32, where correct rounding explains {first.expected / first.samples:.2g}",
            op=first.op, module=first.call.split("#")[0], measured=float(first.flipped), limit=float(_most(first.expected, first.samples)),
        )
    ]  # fmt: skip


def _most(expected: int, samples: int) -> int:
    """The flips exceeded with a chance of CHANCE, when `samples` noise runs had `expected` and the run has FAIL times their rate.

    Counts are Poisson, their rate unknown: with a flat prior the prediction is negative binomial. Flips come in pairs (two
    that change places), so pairs are what is counted.
    """
    pairs = expected / 2 + 1
    keep = samples / (samples + FAIL)
    probability = keep**pairs if pairs * math.log(keep) > -700 else 0.0
    if probability == 0.0:  # many: the normal approximation of the same distribution
        mean = pairs * FAIL / samples
        return math.ceil(2 * (mean + 4.8 * math.sqrt(mean * (1 + FAIL / samples))))
    total, count = probability, 0
    while total < 1 - CHANCE:
        probability *= (pairs + count) / (count + 1) * (1 - keep)
        count += 1
        total += probability
    return 2 * count
