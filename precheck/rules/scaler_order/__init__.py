"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "scaler-order",
    "quantities under different loss scales are added, compared or applied, or a scaler and its optimizer no longer step together",
    "scale every loss, unscale_ once before gradients are read or changed, scaler.step each optimizer, then scaler.update() once",
    rank=160,
)
