"""When the rule fires, what to do about it, and its rank."""

MEANING = "the optimizer's intended update of a parameter did not arrive"
REMEDY = "keep float32 master weights (bf16-master, bf16-mixed), or use stochastic rounding or Kahan summation"
RANK = 140
