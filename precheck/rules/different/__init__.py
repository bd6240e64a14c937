"""The verdict that two implementations are different functions.

The distance between the exact runs of both has no rounding in it. It counts if it is above the floor of the precision, for the whole tensor or any
block of it.
"""

MEANING = "two implementations of one function compute different results: neither rounding nor a flipped decision explains it"
REMEDY = "correct the place named: it is the first at which the two differ"
GIVEN_BY = "pairs"
