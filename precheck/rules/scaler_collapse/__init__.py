"""When the rule fires, what to do about it, and its rank."""

MEANING = "no loss scale down to 1 gave finite gradients"
REMEDY = "the overflow is in the model, not in the scale: compute what overflows in float32"
RANK = 110
