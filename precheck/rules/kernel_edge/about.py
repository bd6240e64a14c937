"""The rule's name, meaning and remedy."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "kernel-edge",
    "a kernel is right for some sizes and wrong for others: a last tile that is not full, one element, no element, more than one block",
    "mask loads and stores of the last tile, and let the grid follow the size",
)
