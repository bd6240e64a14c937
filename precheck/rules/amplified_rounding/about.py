"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "amplified-rounding",
    "one rounding of an input or intermediate is amplified until the result has lost its digits",
    "round after the op that amplifies, not before it: keep this value in float32 until then",
    rank=60,
)
