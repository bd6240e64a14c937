"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "unstable-reference",
    "float32 and float64 disagree as much as the low precision does",
    "the computation is ill-conditioned in any format; reformulate it before judging precisions",
    rank=200,
)
