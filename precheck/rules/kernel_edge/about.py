"""The rule's name, meaning and remedy."""

from precheck.findings import Rule

ABOUT = Rule(
    "kernel-edge",
    "a kernel is wrong in some sizes and right in others: the last tile, one element, none, more than one block",
    "mask loads and stores of the last tile, and let the grid follow the size",
)
