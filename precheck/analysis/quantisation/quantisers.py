"""Finds faults of a quantiser, from the notes on its codes: scales that do not cancel, clipping, biased rounding."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from precheck.analysis.chance import CHANCE, DEVIATIONS
from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.findings import Severity
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.quantisers import code_notes as notes

SCALES_LEFT = Limit(2.0**-6, "relative error")
"""The largest distance between the data and its codes times their scales, with all rounding left out. Scales that are kept in bfloat16 explain 2^-9
each."""
CLIPPED = Limit(3.0, "times what rounding costs the tensor")
"""The largest error that clipping may make, or anything else that changes codes after they were rounded. With the best scale for a Gaussian or
Laplacian tensor, clipping and rounding make about equal errors (Banner et al., arXiv 1810.05723). The scales of the MX specification clip by up to an
eighth and lose less by it than by rounding."""
MISREAD = Limit(2.0, "times what rounding costs the data")
"""The largest distance between the data and what is decoded from its codes, both sorted. By the rearrangement inequality it is at most what rounding
costs, 1, if it is the same data in whatever order. Scales that are kept in a narrow format add to it."""
LEAST_CLIPPED = Limit(0.02, "share of the norm")
"""Clipping that takes a smaller share is not reported. One rounding to e4m3 takes 0.026."""
MOSTLY = Limit(0.5, "share of a line's casts")
"""The scale of a line does not fit if at least this share of its casts clip. If fewer clip, the scale lags behind data that grows."""
WASTED = Limit(0.5, "share of the bits")
"""The largest share of a code's bits that may always be 0, since its scale was made for a greater number than the tensor has. It is that of the
middle one of a line's calls. Eight bits then are worth no more than four. A scale that is shared or lags behind wastes one or two of eight."""
VANISHED = Limit(2.0**-4, "share of the sum")
"""The largest part of a sum of numbers of one sign that may be lost since small ones become zero. Rounding takes no more than that of a normal number
in e4m3."""
MEAN_ERROR = Limit(0.1, "steps")
"""The largest mean error of a quantiser. Rounding to nearest has up to 0.02, towards zero or away from it (Gaussian data over 7 steps). Stochastic
rounding has none."""
COUNTED = 64
"""The largest number of records with a probability of its own. A hundred thousand calls have 30 or more with a probability below `CHANCE`."""
REPEATED = Limit(2.0, "times the square of independent errors")
"""The largest square of the sum of several calls' errors. For independent errors it is 1. If n calls use the same noise it is up to n, and (n + 1) /
2 if they round different numbers."""
AGAIN = Limit(4, "calls")
"""The fewest calls with the same noise that are reported. Two calls may be a finite difference, which uses the same random numbers on purpose."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Miscoded(Fact):
    """A fault of a quantiser."""

    remark: notes.Remark


def remark_of(fact: Fact | None) -> notes.Remark | None:
    """What was seen of the codes, if the fact is about a quantiser."""
    return fact.remark if isinstance(fact, Miscoded) else None


def facts(observation: Observation) -> Iterator[Miscoded]:
    """The facts on the operations that are judged now."""
    for operation in observation.judged:
        if operation.coded is not None:
            rule, measured, limit, severity = _judged(operation.coded)
            if measured > limit:
                yield Miscoded(rule=rule, operation=operation, measured=measured, limit=float(limit), remark=operation.coded, severity=severity)


def _judged(seen: notes.Remark) -> tuple[str, float, float, Severity]:
    """The rule for a note, what was measured and its limit, and the severity beyond that. Clipping is an error if most calls of a line clip, and a
    delayed scale if it is wrong more often than chance explains: it must lag behind when data grows."""
    rounding = max(float(LEAST_CLIPPED), CLIPPED * getattr(seen, "rounding", 0.0))
    if isinstance(seen, notes.Uncancelled):
        return "wrong-scale", seen.off, SCALES_LEFT, "warning" if seen.whole and not seen.fault else "error"
    if isinstance(seen, notes.Unrotated):
        return "wrong-scale", seen.off, SCALES_LEFT, "error"
    if isinstance(seen, notes.Dead | notes.WrappedCodes | notes.MixedCodes):
        return "wrong-scale", seen.share, 0.0, "error"
    if isinstance(seen, notes.Unfolded):
        return "wrong-scale", 1.0, 0.0, "error"
    if isinstance(seen, notes.Derived) and seen.left > rounding:
        return "wrong-scale", seen.off, rounding, "error"
    if isinstance(seen, notes.Changed):
        return "wrong-scale", seen.off, rounding, "error"
    if isinstance(seen, notes.Misread):
        return "wrong-scale", seen.off, max(float(LEAST_CLIPPED), MISREAD * seen.rounding), "error"
    if isinstance(seen, notes.Flushed):
        return "clipping", seen.lost, LEAST_CLIPPED, "error"
    if isinstance(seen, notes.Coarse) and seen.lost > rounding and -math.log2(seen.share) >= WASTED * seen.bits:
        return "clipping", seen.lost, rounding, "error"
    if isinstance(seen, notes.Clipped):
        return "clipping", seen.lost, rounding, "error" if seen.clips >= MOSTLY * seen.calls else "warning"
    if isinstance(seen, notes.Late):
        often = seen.lost > rounding and chance_of_records(seen.calls, seen.small + seen.large, seen.history) < CHANCE
        return "clipping", seen.lost, rounding, "error" if often else "warning"
    if isinstance(seen, notes.Vanished):
        return "biased-rounding", seen.lost, VANISHED, "error"
    if isinstance(seen, notes.Skewed) and abs(seen.mean) > DEVIATIONS * seen.chance:
        return "biased-rounding", abs(seen.mean), MEAN_ERROR, "error"
    if isinstance(seen, notes.RepeatedNoise) and seen.calls >= AGAIN:
        return "biased-rounding", seen.grown, REPEATED, "error"
    return "", 0.0, 0.0, "error"


def chance_of_records(calls: int, records: int, history: int = 1024) -> float:
    """The probability of at least `records` records (values greater than all of the `history` before) in `calls` calls after a first one, in random
    order.

    The k-th call has the largest magnitude so far with probability 1/k, whatever the distribution, and independently of earlier calls (Rényi's
    theorem on records). With a shorter history it is the largest of history + 1 numbers. Two such calls within a history exclude each other in part,
    so that many are rarer than independence says. If the probability is below `CHANCE`, the scale of earlier calls is at fault.
    """
    return sum(_numbers_of_records(calls, history)[min(records, COUNTED) :])


@functools.cache
def _numbers_of_records(calls: int, history: int) -> list[float]:
    """The probabilities of 0, 1, 2 … records. The last is that of `COUNTED` or more."""
    chances = [1.0] + [0.0] * COUNTED
    for call in range(2, calls + 2):
        share = 1 / min(call, history + 1)
        more = [chance * share for chance in chances]
        chances = [chance - gone + come for chance, gone, come in zip(chances, more, [0.0, *more], strict=False)]
        chances[COUNTED] += more[COUNTED]
    return chances
