"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-fallback",
    "a candidate calls its reference, so that the reference is judged and not the kernel",
    "write the kernel, or judge one that does not fall back",
)
