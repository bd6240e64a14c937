"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "undecidable",
    "two results differ by less than rounding explains in this precision, and by more than it explains in float32",
    "compare under 32-true, which decides",
)
