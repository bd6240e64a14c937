"""The same numbers in contiguous memory give the right result."""

MEANING = "a kernel is right for contiguous inputs and wrong for others: strides, an offset, an expanded gradient"
REMEDY = "read strides and offset from the tensor, or call contiguous() first"
GIVEN_BY = "kernels"
