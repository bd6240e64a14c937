"""Finds faults of a quantiser, from the notes on its codes: scales that do not cancel, clipping, biased rounding."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.findings import Severity
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.quantisers.code_notes import (
    Changed,
    Clipped,
    Coarse,
    Dead,
    Derived,
    Flushed,
    Late,
    Misread,
    Mixed,
    Remark,
    Repeated,
    Skewed,
    Uncancelled,
    Unfolded,
    Unrotated,
    Vanished,
    Wrapped,
)

CANCELLED = Limit(
    2.0**-6, "relative error",
    """The largest distance between the data and its codes times their scales, with all rounding left out. Scales that are kept in bfloat16 explain
    2^-9 each.""",
)  # fmt: skip
CLIPPED = Limit(
    3.0, "times what rounding costs the tensor",
    """The largest error that clipping may make, or anything else that changes codes after they were rounded. With the best scale for a Gaussian or
    Laplacian tensor, clipping and rounding make about equal errors (Banner et al., arXiv 1810.05723). The scales of the MX specification clip by up
    to an eighth and lose less by it than by rounding.""",
)  # fmt: skip
MISREAD = Limit(
    2.0, "times what rounding costs the data",
    """The largest distance between the data and what is decoded from its codes, both sorted. By the rearrangement inequality it is at most what
    rounding costs, 1, if it is the same data in whatever order. Scales that are kept in a narrow format add to it.""",
)  # fmt: skip
SEEN = Limit(0.02, "share of the norm", "Clipping that takes a smaller share is not reported. One rounding to e4m3 takes 0.026.")
MOSTLY = Limit(
    0.5, "share of a line's casts",
    "The scale of a line does not fit if at least this share of its casts clip. If fewer clip, the scale lags behind data that grows.",
)  # fmt: skip
WASTED = Limit(
    0.5, "share of the bits",
    """The largest share of a code's bits that may always be 0, since its scale was made for a greater number than the tensor has. It is that of the
    middle one of a line's calls. Eight bits then are worth no more than four. A scale that is shared or lags behind wastes one or two of eight.""",
)  # fmt: skip
VANISHED = Limit(
    2.0**-4, "share of the sum",
    """The largest part of a sum of numbers of one sign that may be lost since small ones become zero. Rounding takes no more than that of a normal
    number in e4m3.""",
)  # fmt: skip
SKEWED = Limit(
    0.1, "steps",
    """The largest mean error of a quantiser. Rounding to nearest has up to 0.02, towards zero or away from it (Gaussian data over 7 steps).
    Stochastic rounding has none.""",
)  # fmt: skip
GROWS = Limit(
    1e-6, "probability",
    """The scale of earlier calls is at fault if data in random order would exceed it as often with less than this probability. In random order the
    k-th call has the largest magnitude so far with probability 1/k, whatever the distribution, and independently of earlier calls (Rényi's theorem on
    records).""",
)  # fmt: skip
MOST = 64
"""The largest number of records with a probability of its own. A hundred thousand calls have 30 or more with less than the probability of `GROWS`."""
REPEATED = Limit(
    2.0, "times the square of independent errors",
    """The largest square of the sum of several calls' errors. For independent errors it is 1. If n calls use the same noise it is up to n, and (n +
    1) / 2 if they round different numbers.""",
)  # fmt: skip
AGAIN = Limit(
    4, "calls",
    "The fewest calls with the same noise that are reported. Two calls may be a finite difference, which uses the same random numbers on purpose.",
)  # fmt: skip
BY_CHANCE = Limit(6.0, "standard errors", "The largest mean error that chance explains. One tensor in 10^9 has a larger one.")


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
        elif isinstance(remark, Unrotated) and remark.off > CANCELLED:
            yield _fact("wrong-scale", operation, remark, remark.off, CANCELLED)
        elif isinstance(remark, Derived) and remark.left > max(SEEN, CLIPPED * remark.rounding):
            yield _fact("wrong-scale", operation, remark, remark.off, max(float(SEEN), CLIPPED * remark.rounding))
        elif isinstance(remark, Dead | Wrapped | Mixed):
            yield _fact("wrong-scale", operation, remark, remark.share, 0.0)
        elif isinstance(remark, Unfolded):
            yield _fact("wrong-scale", operation, remark, 1.0, 0.0)
        elif isinstance(remark, Flushed) and remark.lost > SEEN:
            yield _fact("clipping", operation, remark, remark.lost, SEEN)
        elif isinstance(remark, Changed) and remark.off > max(SEEN, CLIPPED * remark.rounding):
            yield _fact("wrong-scale", operation, remark, remark.off, max(float(SEEN), CLIPPED * remark.rounding))
        elif isinstance(remark, Misread) and remark.off > max(SEEN, MISREAD * remark.rounding):
            yield _fact("wrong-scale", operation, remark, remark.off, max(float(SEEN), MISREAD * remark.rounding))
        elif isinstance(remark, Vanished) and remark.lost > VANISHED:
            yield _fact("biased-rounding", operation, remark, remark.lost, VANISHED)
        elif isinstance(remark, Coarse) and remark.lost > max(SEEN, CLIPPED * remark.rounding) and -math.log2(remark.share) >= WASTED * remark.bits:
            yield _fact("clipping", operation, remark, remark.lost, max(float(SEEN), CLIPPED * remark.rounding))
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
