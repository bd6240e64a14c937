"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "dtype-leak",
    "the float32 run itself stores low-precision results; as a warning too: a float32 table makes low activations float32",
    "remove the cast, or pass the precision from outside, so that float32 means float32; cast a table to the format of what it meets",
    rank=190,
)
