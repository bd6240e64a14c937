"""Checks choices among scores, such as top-k: whether rounding hides the differences between the scores."""

from __future__ import annotations

from precheck import ops
from precheck.analysis.limit import Limit
from precheck.observe.shadow.operations import Operation

ROWS = Limit(5, "rows", "The fewest rows whose choice changed. In healthy programs at most 1 of 32 rows changed.")
BLURRED = Limit(
    0.025, "share of the rows",
    "The smallest share of rows whose choice changed, if rounding hides the differences between their scores. It counts together with `ROWS`.",
)  # fmt: skip
BLUR = Limit(
    16.0, "unit roundoffs",
    """Rounding hides the differences between scores if it is at least this large relative to their spread in a row. Four bits of a choice's input are
    lost then, as when all scores have a large common offset. Healthy routers and classifiers lose about one.""",
)  # fmt: skip
BY_DIFFERENCE = ops.EXTREMES | ops.ORDERED


def blurred(operation: Operation) -> bool:
    """Whether a choice differs from the reference because rounding hides the differences between its scores."""
    flips = operation.flips
    if flips is None or flips.changed < ROWS or operation.packet not in ops.EXTREMES or not operation.inputs[0].roundoff:
        return False
    return flips.changed / flips.total >= BLURRED and flips.blur >= BLUR * operation.inputs[0].roundoff


def ordered_by_place(operation: Operation) -> bool:
    """Whether rounding hides the differences between the scores of a full sort, and something reads its indices.

    Without such a blur a long row, such as a vocabulary's logits, has equal neighbours too. The order among them means nothing.
    """
    flips = operation.flips
    return flips is not None and bool(operation.used_as) and flips.blur >= BLUR * operation.inputs[0].roundoff
