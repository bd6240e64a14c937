"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "rounding",
    "two results differ, each by no more than correct rounding explains",
    "nothing to do: both are right",
)
