"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "accumulated-drift",
    "drift beyond what rounding explains at a module boundary, an output or a gradient",
    "keep this module in float32, or make the values that it amplifies (positions, tables, sums) in float32",
    rank=120,
)
