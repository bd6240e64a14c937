"""Finds faults of a quantiser, from the notes on its codes: scales that do not cancel, clipping, biased rounding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.findings import Severity
from precheck.observe.shadow.code_notes import Clipped, Dead, Flushed, Late, Remark, Repeated, Skewed, Uncancelled, Unturned
from precheck.observe.shadow.operations import Observation, Operation

CANCELLED = Limit(
    2.0**-6, "relative error",
    """of a result of codes and their scales, without any rounding, from what the data itself makes: scales kept in bfloat16 explain 2^-9 each""",
)  # fmt: skip
CLIPPED = Limit(
    3.0, "times what rounding costs the tensor",
    """that clipping may cost it. The best scale of a Gaussian or Laplacian tensor makes both about equal (Banner et al., arXiv 1810.05723); the MX
    specification's scales, which clip by up to an eighth, cost less than rounding does.""",
)  # fmt: skip
SEEN = Limit(0.02, "share of the norm", "that clipping takes, from which it is told: what one rounding to e4m3 costs is 0.026")
MOSTLY = Limit(0.5, "share of a line's casts", "that clip, from which its scale does not fit; of fewer it lags behind data that grows")
SKEWED = Limit(
    0.1, "steps",
    """of a mean error. Rounding to nearest has one of up to 0.02 towards zero or from it (Gaussian data over 7 steps), rounding by chance none.""",
)  # fmt: skip
GROWS = Limit(
    1e-6, "probability",
    """that a scale of earlier calls is wrong so often although the data comes in any order. The greatest magnitude of the k-th call is then greater
    than all before with probability 1/k, whatever its distribution, and independently of the calls before (Rényi's theorem on records).""",
)  # fmt: skip
MOST = 64
"""The largest number of records with a probability of its own. A hundred thousand calls have 30 or more with less than the probability of `GROWS`."""
REPEATED = Limit(
    2.0, "times the square of independent errors",
    """that the sum of some calls' errors may have. Independent errors have 1. With the same noise n calls have up to n, and (n + 1) / 2 where they
    round other numbers.""",
)  # fmt: skip
AGAIN = Limit(4, "calls", "with the same noise: two are an estimate by differences, which takes the same random numbers on purpose")
BY_CHANCE = Limit(6.0, "standard errors", "of a mean error that chance explains: of 10^9 tensors, one has more")


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Miscoded(Fact):
    """A fault of a quantiser."""

    remark: Remark


def facts(observation: Observation) -> Iterator[Miscoded]:
    """The facts on the operations that are judged now."""
    for operation in observation.judged:
        remark = operation.coded
        if isinstance(remark, Uncancelled) and remark.off > CANCELLED:
            yield _fact("wrong-scale", operation, remark, remark.off, CANCELLED, "warning" if remark.whole and not remark.fault else "error")
        elif isinstance(remark, Unturned) and remark.off > CANCELLED:
            yield _fact("wrong-scale", operation, remark, remark.off, CANCELLED)
        elif isinstance(remark, Dead):
            yield _fact("wrong-scale", operation, remark, remark.share, 0.0)
        elif isinstance(remark, Flushed) and remark.lost > SEEN:
            yield _fact("clipping", operation, remark, remark.lost, SEEN)
        elif isinstance(remark, Clipped):
            yield from _clipping(operation, remark)
        elif isinstance(remark, Late):
            yield from _late(operation, remark)
        elif isinstance(remark, Skewed) and abs(remark.mean) > max(SKEWED, BY_CHANCE * remark.chance):
            yield _fact("biased-rounding", operation, remark, abs(remark.mean), SKEWED)
        elif isinstance(remark, Repeated) and remark.calls >= AGAIN and remark.grown > REPEATED:
            yield _fact("biased-rounding", operation, remark, remark.grown, REPEATED)


def _clipping(operation: Operation, remark: Clipped) -> Iterator[Miscoded]:
    """The fact on clipping: an error if most calls of a line clip. Otherwise a warning, since a delayed scale must lag behind when data grows."""
    if remark.lost > max(SEEN, CLIPPED * remark.rounding):
        severity: Severity = "error" if remark.clips >= MOSTLY * remark.calls else "warning"
        yield _fact("clipping", operation, remark, remark.lost, max(float(SEEN), CLIPPED * remark.rounding), severity)


def _late(operation: Operation, remark: Late) -> Iterator[Miscoded]:
    """The fact on a delayed scale: an error if it is wrong more often than chance explains, since it does not suit the data. Otherwise a warning."""
    limit = max(float(SEEN), CLIPPED * remark.rounding)
    if remark.lost > limit:
        by_chance = chance_of_records(remark.calls, remark.small + remark.large)
        yield _fact("clipping", operation, remark, remark.lost, limit, "error" if by_chance < GROWS else "warning")


def chance_of_records(calls: int, records: int) -> float:
    """The probability of at least `records` records (values greater than all before) in `calls` calls after a first one, in random order."""
    return sum(_numbers_of_records(calls)[min(records, MOST) :])


@functools.cache
def _numbers_of_records(calls: int) -> list[float]:
    """The probabilities of 0, 1, 2 … records. The last is that of `MOST` or more."""
    chances = [1.0] + [0.0] * MOST
    for call in range(2, calls + 2):
        more = [chance / call for chance in chances]
        chances = [chance - gone + come for chance, gone, come in zip(chances, more, [0.0, *more], strict=False)]
        chances[MOST] += more[MOST]
    return chances


def _fact(mechanism: str, operation: Operation, remark: Remark, measured: float, limit: float, severity: Severity = "error") -> Miscoded:
    return Miscoded(mechanism=mechanism, operation=operation, measured=measured, limit=float(limit), remark=remark, severity=severity)
