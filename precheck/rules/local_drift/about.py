"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "local-drift",
    "an op erred by more than one rounding of its result allows, as a sum kept in the low format does",
    "ask for a float32 accumulator (dtype=torch.float32), or cast the input up",
    rank=80,
)
