"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-constant",
    "a kernel gives the same result for all inputs",
    "compute the result from the inputs",
)
