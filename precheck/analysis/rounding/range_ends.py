"""Tells what a format loses at the ends of its range from what it rounds: numbers that are too small for it, and numbers beyond its largest."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.provenance import underflowed
from precheck.observe.shadow.operations import Operation


def of_small_numbers(cause: Operation) -> bool:
    """Whether an op's error is that of subnormal numbers, or of numbers that became zero."""
    made = cause.outputs[0]
    return _beyond_rounding(cause) and _small(cause) >= causes.MADE_BY_OP * attribution.own_error(cause, made)


def cut_off(cause: Operation) -> bool:
    """Whether a cast's error is that of numbers beyond the largest of its format, which become the largest one. `clipping` judges these.

    A cast loses nothing but what it rounds, what becomes subnormal or zero, and what it cuts off.
    """
    return cause.base in ops.CASTS and _beyond_rounding(cause) and not of_small_numbers(cause)


def _beyond_rounding(cause: Operation) -> bool:
    made = cause.outputs[0]
    return attribution.own_error(cause, made) > 2 * max(made.rounded, made.local or 0.0)


def _small(cause: Operation) -> float:
    """The error of numbers that are subnormal or became zero, relative to the norm. A zero instead of a number that the format has is not of this
    kind, such as the arc cosine of what was rounded to one."""
    made = cause.outputs[0]
    return math.hypot(causes.subnormal_error(made), made.zeroed if underflowed(made) else 0.0)
