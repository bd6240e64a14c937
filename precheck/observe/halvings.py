"""How often a loss scale has to be halved: found in few runs, each of which costs a step."""

from __future__ import annotations

from collections.abc import Callable


def fewest(span: int, suffices: Callable[[int], bool], *, lost: bool) -> int | None:
    """The fewest halvings that suffice, of `span` that lead down to 1; None if these do not. Without any, it is known not to be enough.

    What is not finite under a scale of 1 is not finite under any: the forward pass does not depend on it. So where the loss itself is
    `lost`, 1 is tried at once; else 1, 2, 4, … halvings, and then what lies between the last two. What is asked last is the answer, or `span`.
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
