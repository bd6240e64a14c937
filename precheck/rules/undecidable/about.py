"""What `undecidable` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "undecidable",
    "two differ by less than rounding under this precision explains, and by more than it explains in float32",
    "compare under 32-true, which decides",
)
