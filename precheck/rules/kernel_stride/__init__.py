"""The same numbers in contiguous memory give the right result."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-stride",
    "a kernel is right for contiguous inputs and wrong for others: strides, an offset, an expanded gradient",
    "read strides and offset from the tensor, or call contiguous() first",
    given_by="kernels",
)
