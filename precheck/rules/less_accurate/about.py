"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "less-accurate",
    "one of two implementations of a function has more error than rounding explains; as a note: it is the reference",
    "compute in float32 at the place named, as the other of the two does",
)
