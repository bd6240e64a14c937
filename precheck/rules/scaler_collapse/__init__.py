"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "scaler-collapse",
    "no loss scale down to 1 gave finite gradients",
    "the overflow is in the model, not in the scale: compute what overflows in float32",
    rank=110,
)
