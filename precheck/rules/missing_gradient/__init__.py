"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "missing-gradient",
    "a parameter has a gradient in the reference and none here",
    "look for a cast to integers, .data or .item() that only this precision reaches",
    rank=130,
)
