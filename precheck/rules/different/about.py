"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "different",
    "two implementations of one function compute different results: neither rounding nor a flipped decision explains it",
    "correct the place named: it is the first at which the two differ",
)
