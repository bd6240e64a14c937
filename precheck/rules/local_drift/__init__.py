"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "local-drift",
    "an op has a larger error than one rounding of its result explains, as a sum kept in the low format has",
    "ask for a float32 accumulator (dtype=torch.float32), or cast the input up",
    rank=80,
)
