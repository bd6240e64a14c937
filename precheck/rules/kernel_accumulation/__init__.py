"""The error grows with the length of a dimension, measured in errors of correct implementations."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-accumulation",
    "a kernel keeps a sum in a low format: its error grows with the number of terms",
    "add up in float32, whatever the inputs are stored in",
    given_by="kernels",
)
