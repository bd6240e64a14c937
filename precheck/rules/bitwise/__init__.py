"""The verdict that the results of two runs are equal.

Every tensor of both runs under the precision has the same bits.
"""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "bitwise",
    "two results are equal bit for bit",
    "nothing to do: both are the same",
    given_by="pairs",
    exact=True,
)
