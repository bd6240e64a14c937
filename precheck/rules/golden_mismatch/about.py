"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "golden-mismatch",
    "off the golden, which has float32's own decisions, and within the floor along the run's own",
    "nothing, unless the decisions matter: compute what is compared in float32",
    rank=210,
)
