"""When the rule fires, what to do about it, and its rank."""

MEANING = "float32 and float64 disagree as much as the low precision does"
REMEDY = "the computation is ill-conditioned in any format; reformulate it before judging precisions"
RANK = 200
