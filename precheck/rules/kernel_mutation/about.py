"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-mutation",
    "a kernel writes into its inputs, outside their bounds, or into the gradient that it was given; as a warning: outputs share memory with inputs",
    "write into newly allocated memory",
)
