"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-contract",
    "a kernel computes another function: its formula, axis, scale, shape, dtype or treatment of NaN differs; as a warning: it refuses inputs",
    "compare the formula with the reference's, term by term",
)
