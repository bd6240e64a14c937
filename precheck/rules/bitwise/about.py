"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "bitwise",
    "two results are equal bit for bit",
    "nothing to do: both are the same",
)
