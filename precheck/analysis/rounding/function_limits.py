"""How far the result of a user's function, or of a kernel, may be off, and what makes a line or a function the cause of its error: whether the
precision asks for low numbers there, and whether an op has lost what lies at the ends of a format's range."""

from __future__ import annotations

import math
from collections.abc import Set

from precheck import formats, ops
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import effective_roundoff, elements, underflowed
from precheck.observe.shadow.operations import Operation, Value

ADDED = Limit(4.0, "unit roundoffs")
"""The largest error of a function that has computed wide and then casts its result, because its author wrote that cast. Without the cast it would
have no error. One rounding is 0.42 unit roundoffs, so this is ten of them. Healthy functions reach 1.0."""
ROUNDED = Limit(13.0, "unit roundoffs")
"""The largest error of a function that computes low because the precision asks for it: it was given low numbers, or has a product. It is five bits,
32 times 0.42 unit roundoffs, as for one op (`differences.LOSES_FIVE_BITS`). The softmax of sharp scores has 6, and 18 healthy networks up to 3.8."""
OWNED = Limit(0.5, "share of the square of the error")
"""An error is attributed to one line if that line has at least this share. A difference of nearly equal numbers gets that of its terms, too."""
MADE_BY_FUNCTION = Limit(0.75, "share of the square of the error")
"""A function is blamed if it made at least this share itself. Correcting the function then at least halves the error: √(1 - 0.75) = ½."""
COARSE = Limit(formats.BF16.unit_roundoff, "unit roundoff")
"""The unit roundoff for the error of a subnormal number, or of one that became zero: bfloat16's, since a subnormal number has as few bits."""
WRONG_GRADIENT = Limit(0.1, "relative error")
"""A gradient is wrong from this error on, where the result is right whose derivative it is. It has no correct decimal digit then. A smaller error is
less than the noise of gradients from batch to batch. The gradient of a small residual in bfloat16 has 0.06, as the precision asks."""
ENLARGED = Limit(8.0, "times")
"""A number in a function explains an error of a gradient that is at most so many times its own. The derivative of the n-th power of a number has
n - 1 times its error."""
WEIGHTINGS = Limit(2.0, "roundings of attention's weights")
"""A kernel rounds weights when it stores them, and exponentials before that where it adds them up in blocks."""

FUNCTION_ERRORS = (ROUNDED, OWNED, MADE_BY_FUNCTION, WRONG_GRADIENT, ENLARGED)
"""The limits of every rule that blames a line or a function for what a user's function returns."""


def asked(made: Attribution) -> bool:
    """Whether the precision asks for low numbers in a call. Otherwise its author's own casts made all of them."""
    return has_product(made) or given_low(made)


def has_product(made: Attribution) -> bool:
    """Whether an error passed a product that autocast makes low, unless the author has turned autocast off around it."""
    return any(each.base in ops.PRODUCTS and not each.autocast_left for each in made.through)


def given_low(made: Attribution) -> bool:
    """Whether an op gets a low number from elsewhere.

    It does not count if another operand of that op is a wide number that the author has cast: of a low and a wide number torch makes a wide one.
    Nor is a number from elsewhere that the author has cast in the call, though no error passes a cast that loses nothing.
    """
    passed = made.through.keys()
    own = {each.outputs[0] for each in passed if causes.casts_wide(each) and each.inputs and attribution.written(each) and not each.implicit}
    calls = {each.call for each in passed}
    given = (each for each in passed if any(source.low and not (source.maker in passed or _cast_here(source, calls)) for source in each.inputs))
    return any(own.isdisjoint(each.inputs) for each in given)


def _cast_here(value: Value, calls: Set[int]) -> bool:
    """Whether a call's author has cast a number there without loss, as the format has small whole numbers. No error passes such a cast, and yet the
    number is not from elsewhere."""
    maker = value.maker
    if maker is None or value.drift > 0 or maker.base not in ops.CASTS:
        return False
    return maker.call in calls and causes.casts_wide(maker) and attribution.written(maker)


def kernel_limit(operation: Operation, value: Value) -> float:
    """The limit for a kernel that sums n terms in the low format: (1 + √n/2) u. With a larger error it stagnates (numerics, 1.2). A scattering op
    adds up most terms for elements that are often the largest. Attention multiplies rounded weights by values, which may cancel."""
    terms = max((elements(source) for source in operation.inputs), default=1) / max(1, elements(value))
    roundings = max(ROUNDINGS, 1 + math.sqrt(max(1.0, terms, value.terms)) / 2)
    return max(roundings * effective_roundoff(value), WEIGHTINGS * value.weighting)


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
