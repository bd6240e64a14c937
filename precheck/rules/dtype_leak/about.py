"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "dtype-leak",
    "the float32 run itself stores low-precision results",
    "remove the cast, or pass the precision from outside, so that float32 means float32",
    rank=190,
)
