"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-contract",
    "a kernel computes another function: a formula, an axis, a scale, a shape, a dtype, the treatment of NaN; as a warning: it refuses inputs",
    "compare the formula with the reference's, term by term",
)
