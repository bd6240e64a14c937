"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "amplified-rounding",
    "one rounding of an input or intermediate is amplified until the result has lost its digits",
    "keep this value in float32 until the op that amplifies has read it, and round after that op",
    rank=60,
)
