"""What `less-accurate` says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "less-accurate",
    "of two of the same function, one is beyond what rounding explains and the other is not; as a note: the reference is",
    "keep in float32 what the place named accumulates or amplifies, as the other of the two does",
)
