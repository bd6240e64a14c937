"""When the rule fires, what to do about it, and its rank."""

MEANING = "top-k, argmax or comparisons chose differently from the reference, more often than rounding explains"
REMEDY = "compute what is compared (router logits, distances) in float32"
RANK = 180
