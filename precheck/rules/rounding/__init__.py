"""The verdict that two implementations differ only by rounding.

Both lie within the floor of the exact result, and the exact runs agree.
"""

MEANING = "two results differ, each by no more than correct rounding explains"
REMEDY = "nothing to do: both are right"
GIVEN_BY = "pairs"
