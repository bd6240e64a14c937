"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "cancellation",
    "a subtraction of nearly equal low-precision numbers leaves little but their rounding errors",
    "subtract in float32 and before rounding, or use a form without the subtraction (log1p, expm1, a direct difference)",
    rank=70,
)
