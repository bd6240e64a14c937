"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "cancellation",
    "a subtraction of near-equals, stored low, leaves their rounding errors and little else",
    "subtract in float32 and before rounding, or use a form without the subtraction (log1p, expm1, a direct difference)",
    rank=70,
)
