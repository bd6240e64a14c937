"""Counts the rows in which a bound, which is one of the row's own scores, lets more pass than it should.

A program may choose by comparing: it keeps all scores that are at least the k-th, or that equal the largest. Distinct scores that the format has
made equal to this one pass as well, so that the row has more than k. Beyond the last probability that is not zero, or among masked scores, that means
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precheck import ops
from precheck.observe.shadow.comparing.statistics import WHOLES
from precheck.observe.shadow.op_notes import Flips
from precheck.observe.shadow.probes.masks import MASKED

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

ABOVE = frozenset({("ge", 0), ("lt", 0), ("le", 1), ("gt", 1)})
"""Comparisons that tell whether a score is at least the bound, by the place of the scores among the operands. Other orders tell whether it is at most
the bound, and all others whether it is the bound."""


def passed(call: Call) -> None:
    """After a comparison of each row with one of its own scores: counts the rows in which others are equal to it in the run alone."""
    if len(call.floats) != 2 or call.operation.phase == "backward" or not call.inputs[0].low:
        return
    place = int(call.floats[0].numel() < call.floats[1].numel())
    scores, bound = call.floats[place], call.floats[1 - place]
    if scores.dim() < 2 or scores.shape[-1] < 2 or bound.shape != (*scores.shape[:-1], 1) or call.mode.later.defers(scores):
        return
    run, shadow, edge, wide = (each.detach().flatten(0, -2)[:WHOLES] for each in (scores, call.shadows[id(scores)], bound, call.shadows[id(bound)]))
    equal = run == edge
    if not bool(equal.any(-1).all()):
        return  # the bound is not one of the row's own scores
    more = ((equal & (shadow != wide)) & (edge != 0) & (edge > MASKED)).sum(-1)
    rows = more > 0
    if bool(rows.any()):
        passing = equal if call.plan.base not in ops.BOUNDING else run >= edge if (call.plan.base, place) in ABOVE else run <= edge
        call.operation.flips = Flips(int(rows.sum()), rows.numel(), int(rows.sum()), swapped=float((more / passing.sum(-1))[rows].mean()))
