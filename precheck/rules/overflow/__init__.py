"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "overflow",
    "finite inputs gave Inf or NaN where the reference is finite",
    "compute this module in float32 (a nested torch.autocast(..., enabled=False) and .float()), or scale its input down",
    rank=10,
)
