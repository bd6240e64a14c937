"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-rounding",
    "a kernel rounds an intermediate that its reference keeps, or overflows, underflows or cancels where its reference does not",
    "compute in float32 inside and round once, where the result is stored",
)
