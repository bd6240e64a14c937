"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-fallback",
    "a candidate calls its reference, so that the check would compare the reference with itself",
    "write the kernel, or judge one that does not fall back",
)
