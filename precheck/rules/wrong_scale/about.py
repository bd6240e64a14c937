"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "wrong-scale",
    "what was quantised under a scale is not dequantised by the same scale: wrong axis, order, step or zero point",
    "dequantise by the very scale that the tensor was quantised with, along the same axis and in the same order",
    rank=31,
)
