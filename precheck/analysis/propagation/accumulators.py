"""Finds the accumulators through which an error came in: sums, counters and averages that stand still in the run and move in the reference.

What such a sum is off has grown over many additions: no single rounding explains it, and a walk to the op that made half of an error finds none.
"""

from __future__ import annotations

from precheck.analysis.propagation.causes import MADE_BY_OP
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import Value


def standing_still(value: Value) -> frozenset[str]:
    """The lines of additions that left their accumulator unchanged, from which the error of a value came.

    Squares of errors add up, so the walk goes on to each input that brought half of the error or more.
    """
    lines, walk = set[str](), Walk([value], NEARBY)
    for each in walk:
        maker = each.maker
        if maker is None:
            continue
        if maker.absorbed is not None and maker.absorbed.share >= MADE_BY_OP:
            lines.add(maker.blamed)
        walk.follow(source for source in maker.inputs if source.drift and source.drift >= MADE_BY_OP * maker.drift_in)
    return frozenset(lines)
