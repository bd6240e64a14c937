"""Finds how often a loss scale has to be halved, in few trials, since each trial costs a step."""

from __future__ import annotations

from collections.abc import Callable


def fewest(span: int, suffices: Callable[[int], bool], *, lost: bool) -> int | None:
    """The fewest halvings that suffice, out of the `span` halvings that lead to a scale of 1. None if even these do not. No halving is known to fail.

    If the loss itself is not finite (`lost`), a scale of 1 is tried at once: the forward pass does not depend on the scale, so if this fails, all do.
    Else 1, 2, 4, … halvings are tried, then numbers between the last two. The last trial is the answer, or `span`.
    """
    bad, good, asked = 0, span + 1, 0
    while bad < min(good - 1, span):
        asked = (bad + good) // 2 if good <= span else span if lost else min(span, max(1, 2 * bad))
        if suffices(asked):
            good = asked
        else:
            bad = asked
    if bad == span:
        return None
    if asked != good:
        suffices(good)
    return good
