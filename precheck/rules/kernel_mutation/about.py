"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-mutation",
    "a kernel writes into its inputs, beside them, or into the gradient that it was given; as a warning: outputs are in the memory of inputs",
    "write into memory of its own",
)
