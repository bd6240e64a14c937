"""When the rule fires, what to do about it, and its rank."""

MEANING = "a share of a tensor that matters is zero or subnormal here and not in the reference"
REMEDY = "compute it in float32, or scale it up before it is rounded"
RANK = 30
