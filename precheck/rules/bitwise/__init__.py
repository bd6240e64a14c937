"""The verdict that the results of two runs are equal.

Every tensor of both runs under the precision has the same bits.
"""

MEANING = "two results are equal bit for bit"
REMEDY = "nothing to do: both are the same"
GIVEN_BY = "pairs"
EXACT = True
