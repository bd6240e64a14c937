"""When the rule fires, what to do about it, and its rank."""

MEANING = "more NaN than the reference, with no overflow before it; as a warning: a loss or gradient that is not finite in float32 either"
REMEDY = "look for Inf - Inf, 0/0 or a row that is masked entirely, and compute it in float32"
RANK = 20
