"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-constant",
    "a kernel gives the same result for all inputs",
    "compute the result from the inputs",
)
