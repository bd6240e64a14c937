"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "different",
    "two implementations of one function compute different results: neither rounding nor a flipped decision explains it",
    "correct the place named: it is the first at which the two differ",
)
