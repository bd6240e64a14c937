"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "lost-update",
    "the optimizer's intended update of a parameter did not arrive",
    "keep float32 master weights (bf16-master, bf16-mixed), or use stochastic rounding or Kahan summation",
    rank=140,
)
