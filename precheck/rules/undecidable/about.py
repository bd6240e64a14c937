"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "undecidable",
    "two results differ by less than rounding explains in this precision, and by more than it explains in float32",
    "compare under 32-true, which decides",
)
