"""The verdict that two implementations differ by no more than rounding in this precision.

The exact runs differ by more than float32's floor, and by less than that of the precision.
"""

MEANING = "two results differ by less than rounding explains in this precision, and by more than it explains in float32"
REMEDY = "compare under 32-true, which decides"
GIVEN_BY = "pairs"
