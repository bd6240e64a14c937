"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "golden-mismatch",
    "differs from the golden, which has float32's own decisions, and agrees with a float32 run that takes this run's decisions",
    "nothing, unless the decisions matter: then compute what is compared in float32",
    rank=210,
)
