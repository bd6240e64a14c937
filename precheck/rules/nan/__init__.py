"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "nan",
    "more NaN than the reference, with no overflow before it; as a warning: a loss or gradient that is not finite in float32 either",
    "look for Inf - Inf, 0/0 or a row that is masked entirely, and compute it in float32",
    rank=20,
)
