"""Recognises comparisons on whose answers a program branches by chance, and those that only ask whether a loop has come to rest.

Near the end of a loop |x_n - x_(n-1)| is rounding, and chance says in which iteration it falls below the limit. So this answer is no result of the
program. What the loop gives is a result, and shows the harm if the loop ended too early.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from precheck import ops
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.causes import before_joins
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

MISLED = Limit(0.25, "share of the answers")
"""A program branches on garbage if at least this share of the answers of a comparison's line, in all its calls, differ from the reference, and if
most of what is compared is error. If chance decides, half of the answers differ. If rounding decides near a tie only, few do."""
BRANCHES = Limit(8, "answers")
"""The fewest answers of a line that differ. A loop that ends one iteration early or late has one."""
WRONG_ANSWERS = Limit(0.01, "share of the answers")
"""A program branches on wrong numbers if at least this share of a line's answers differ although rounding does not explain it. It is the share of
elements without a digit that makes any other result wrong (`output_impact.DEAD`)."""
WRONG_NUMBER = Limit(0.5, "relative error")
"""A number that Python reads, or that the user keeps, is wrong if it is off by more than half of itself."""
PASSED = ops.MOVING | ops.SCALING | ops.REDUCTIONS | ops.EXTREMES | ops.ROOTS
"""Ops between the size of a difference and the number that is compared: a share of the state's size, the largest element, a mean, a root."""


def decided_by_chance(observation: Observation) -> set[Operation]:
    """The comparisons whose answers differ from the reference because what they compare is wrong, on lines with many such answers."""
    asked, last, differing = Counter[tuple[str, str]](), dict[tuple[str, str], int](), defaultdict[tuple[str, str], list[Operation]](list)
    for operation in observation.operations:
        if operation.base in ops.COMPARED and (operation.flips is not None or operation.mistaken is not None):
            asked[operation.line] += _asked(operation)
            if misled(operation) and not at_rest(operation, last.get(operation.line, 0)):
                differing[operation.line].append(operation)
            last[operation.line] = operation.number
    often = (found for line, found in differing.items() if _often(found, asked[line]))
    return {operation for found in often for operation in found}


def _asked(comparison: Operation) -> int:
    return max(note.total for note in (comparison.flips, comparison.mistaken) if note is not None)


def _often(found: list[Operation], asked: int) -> bool:
    """Whether so many answers of a line differ that they are no ties: chance decides, or more is wrong than rounding explains."""
    plainly = sum(map(count_of_unexplained_answers, found))
    return sum(map(count_of_differing_answers, found)) >= max(BRANCHES, MISLED * asked) or plainly >= max(BRANCHES, WRONG_ANSWERS * asked)


def misled(comparison: Operation) -> bool:
    """Whether a comparison has other answers than in the reference, since most of what it compares is error, or more than rounding explains."""
    return (count_of_differing_answers(comparison) > 0 and comparison.drift_in > WRONG_NUMBER) or count_of_unexplained_answers(comparison) > 0


def count_of_differing_answers(comparison: Operation) -> int:
    """How many of a comparison's answers differ from the reference: one at most, or one for each element."""
    return comparison.flips.changed if comparison.flips is not None else 0


def count_of_unexplained_answers(comparison: Operation) -> int:
    """How many of a comparison's answers differ although the numbers are further apart than rounding explains, if it is not whether a loop has come
    to rest."""
    seen = comparison.mistaken
    return 0 if seen is None or not seen.count or at_rest(comparison) else seen.count


def masks_wrongly(comparison: Operation) -> bool:
    """Whether a comparison of many numbers has so many answers that rounding does not explain that it is wrong, as any other result would be."""
    seen = comparison.mistaken
    return seen is not None and seen.total > 1 and count_of_unexplained_answers(comparison) >= max(1, WRONG_ANSWERS * seen.total)


def at_rest(comparison: Operation, before: int | None = None) -> bool:
    """Whether a comparison reads the size of the difference between a number and that of an earlier iteration.

    `before`: the number of the op that last compared on this line; None if that is not known. A sign says more than a size does: which of two numbers
    is larger.
    """
    walk, sized = Walk(comparison.inputs, NEARBY), False
    for value in walk:
        maker = value.maker
        if maker is None:
            continue
        sized |= maker.base in ops.SIZES
        if maker.base in ops.SIZES | PASSED:
            walk.follow(maker.inputs)
        elif sized and maker.base in ops.SUBTRACTIONS and len(maker.inputs) == 2 and _iterated(*maker.inputs, before):
            return True
    return False


def _iterated(one: Value, other: Value, between: int | None) -> bool:
    """Whether the same line and op made both numbers, one before the op number `between` and the other after it. None: before the last of all."""
    if between is None:
        between = max((op.number for value in (one, other) for op in _makers(value)), default=0)
    earlier, later = ({(op.line, op.name, op.number < between) for op in _makers(value)} for value in (one, other))
    return any((line, name, not first) in later for line, name, first in earlier)


def _makers(value: Value) -> list[Operation]:
    """The ops that made what was moved, kept or chosen to become the value."""
    return [each.maker for each in before_joins(value) if each.maker is not None]
