"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "decision-flip",
    "top-k, argmax or comparisons chose differently from the reference, more often than rounding explains",
    "compute what is compared (router logits, distances) in float32",
    rank=180,
)
