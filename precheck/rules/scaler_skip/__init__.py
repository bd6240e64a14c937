"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "scaler-skip",
    "GradScaler skipped steps for a cause that no loss scale removes, or more often than calibration and growth explain",
    "compute the op named in float32, or scale its input down; where only the scale is too high, lower init_scale or grow it less often",
    rank=150,
)
