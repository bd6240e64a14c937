"""When the rule fires, what to do about it, and its rank."""

MEANING = "one rounding of an input or intermediate is amplified until the result has lost its digits"
REMEDY = "keep this value in float32 until the op that amplifies has read it, and round after that op"
RANK = 60
