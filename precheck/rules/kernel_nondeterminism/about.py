"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-nondeterminism",
    "a kernel gives other results for the same tensors, and its reference does not",
    "let one program write each element, or sort before adding",
)
