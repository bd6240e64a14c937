"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "clipping",
    "a quantiser's scale does not fit the tensor: more is lost at an end of the format than by rounding",
    "take the scale from this tensor's greatest magnitude (fp8-current instead of fp8-delayed), update its history, round powers of two up",
    rank=32,
)
