"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "underflow",
    "a share of a tensor that matters is zero or subnormal here and not in the reference",
    "compute it in float32, or scale it up before it is rounded",
    rank=30,
)
