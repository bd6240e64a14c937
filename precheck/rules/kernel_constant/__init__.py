"""Two random inputs give the same result, bit for bit, where the reference gives two different ones."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-constant",
    "a kernel gives the same result for all inputs",
    "compute the result from the inputs",
    given_by="kernels",
    exact=True,
)
