"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "clipping",
    "a quantiser's scale is too small for the tensor: more is lost at the format's end than by rounding",
    "take the scale from this tensor's greatest magnitude, update its history, round powers of two up",
    rank=32,
)
