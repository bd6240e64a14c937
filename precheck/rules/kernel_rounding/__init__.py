"""An intermediate has a format that is too low, or a formula cancels.

With a wider format the error disappears, and it does not grow with the length of sums.
"""

MEANING = "a kernel rounds an intermediate that its reference keeps, or overflows, underflows or cancels where its reference does not"
REMEDY = "compute in float32 inside and round once, where the result is stored"
GIVEN_BY = "kernels"
