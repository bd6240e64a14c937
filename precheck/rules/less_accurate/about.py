"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "less-accurate",
    "of two that are the same function, one has more error than rounding explains; as a note: the reference is the one",
    "compute in float32 at the place named, as the other of the two does",
)
