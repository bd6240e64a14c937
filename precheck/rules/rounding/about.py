"""What `rounding` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "rounding",
    "two differ, each by no more than correct rounding explains",
    "nothing: both are right",
)
