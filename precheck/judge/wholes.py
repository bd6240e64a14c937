"""Whole numbers that a low format cannot hold: positions, counts, ids."""

from __future__ import annotations

import math

from precheck.judge import causes
from precheck.judge.events import Suspect
from precheck.judge.excuses import SCALED, Excuse, drawn, scaled, unread
from precheck.judge.lineage import CONSTANTS, REDUCTIONS, elements, placed
from precheck.observe.shadow.operations import Operation, Renumbered, Value

SEVERAL = 2
"""Different whole numbers that an op rounds to others, from which they count something. A lone one is a constant, such as a mask's."""
FRACTIONAL = 2.0**-4
"""Size of numbers, root mean squares, times their unit roundoff, up to which their format has four bits behind the point."""


def moved(operation: Operation, value: Value) -> Suspect | None:
    """Whole numbers beyond the reach of the format that an op rounds to others."""
    if value.wholes_moved < SEVERAL or operation.phase == "backward" or not operation.drift_in < value.drift or causes.only_moved(operation, value):
        return None
    exact = f"{1 / value.roundoff:.0f}"
    text = f"whole numbers up to {value.peak:.0f} in {value.dtype}, which holds all only up to {exact}: {value.wholes_moved} or more moved"
    return Suspect("integer-rounding", operation, text, value.peak, 1 / value.roundoff)


def excuses(operation: Operation) -> list[Excuse]:
    """What lets go of them."""
    converted = [unread] if operation.converts else []
    measures = [scaled] if operation.base in SCALED or operation.base == "_to_copy" else []
    return [drawn, *converted, *measures]


def _counted(cause: Operation) -> bool:
    """Whether it adds up numbers that are exact, and small enough to have digits behind the point if they were no whole numbers."""
    small = all(source.norm <= FRACTIONAL / (source.roundoff or 1.0) * math.sqrt(elements(source)) for source in cause.inputs)
    return cause.base in REDUCTIONS and small and not any(source.drift for source in cause.inputs)


def renumbered(operation: Operation, seen: Renumbered, cause: Operation | None) -> list[Suspect]:
    """Numbers of something (ids, positions, counts) that are integers in the end, and others than they were. `cause` rounded them.

    One is enough, and other columns of what they were stored in may hold what they like: the cast to integers says what they are.
    They were wide when they were stored, or added up of small numbers without an error, as counts are: of what is computed in the format all large
    numbers are whole.
    """
    if cause is None or not (_counted(cause) or (cause.base in CONSTANTS and not any(source.low for source in cause.inputs))):
        return []
    dtype = next((value.dtype for value in cause.outputs if value.low), "a low format")
    several = f"; {seen.moved} different ones are others" if seen.moved > 1 else ""
    text = (f"{seen.was:.0f} becomes {seen.became:.0f} in {dtype}, which holds all whole numbers only up to {seen.reach:.0f}, "
            f"and is made an integer by {placed(operation)}{several}")  # fmt: skip
    return [Suspect("integer-rounding", cause, text, seen.peak, seen.reach)]
