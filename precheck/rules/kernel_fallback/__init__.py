"""Python's profiling hook shows that a call of the candidate runs a fallback. It is a warning, since a fallback for some inputs may be intended."""

MEANING = "a candidate calls its reference, so that the check would compare the reference with itself"
REMEDY = "write the kernel, or judge one that does not fall back"
GIVEN_BY = "kernels"
EXACT = True
