"""What `different` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "different",
    "of two that should be the same function, one computes something else: neither rounding nor a flipped decision explains it",
    "mend the place named, where the two part first; other gives the same result there once it computes what model does",
)
