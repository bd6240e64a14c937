"""How far the result of a user's function may be off, and what makes a line or a function the cause of its error."""

from __future__ import annotations

from precheck import formats
from precheck.analysis.limit import Limit

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

FUNCTION_ERRORS = (ROUNDED, OWNED, MADE_BY_FUNCTION, WRONG_GRADIENT, ENLARGED)
"""The limits of every rule that blames a line or a function for what a user's function returns."""
