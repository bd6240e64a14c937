"""Results differ when the same call is repeated, on the same tensors, with another number of threads or on another
stream. The message says by how much.
"""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-nondeterminism",
    "a kernel gives other results for the same tensors, and its reference does not",
    "let one program write each element, or sort before adding",
    given_by="kernels",
    exact=True,
)
