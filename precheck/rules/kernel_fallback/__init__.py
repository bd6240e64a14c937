"""Python's profiling hook shows that a call of the candidate runs a fallback. It is a warning, since a fallback for some inputs may be intended."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-fallback",
    "a candidate calls its reference, so that the check would compare the reference with itself",
    "write the kernel, or judge one that does not fall back",
    given_by="kernels",
    exact=True,
)
