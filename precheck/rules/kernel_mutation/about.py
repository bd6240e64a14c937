"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-mutation",
    "a kernel writes into its inputs, outside their bounds, or into the gradient that it was given; or returns an input's memory as its own result",
    "write into newly allocated memory",
)
