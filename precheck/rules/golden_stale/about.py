"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "golden-stale",
    "the golden was recorded with other inputs, weights or code",
    "pytest --golden-refresh=changed",
    rank=220,
)
