"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "rounding",
    "two results differ, each by no more than correct rounding explains",
    "nothing to do: both are right",
)
