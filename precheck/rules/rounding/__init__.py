"""The verdict that two implementations differ only by rounding.

Both lie within the floor of the exact result, and the exact runs agree.
"""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "rounding",
    "two results differ, each by no more than correct rounding explains",
    "nothing to do: both are right",
    given_by="pairs",
)
