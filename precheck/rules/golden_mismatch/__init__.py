"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "golden-mismatch",
    "the run differs from the golden because it decided otherwise; a float32 run that takes the same decisions agrees with it",
    "nothing, unless the decisions matter: then compute what is compared in float32",
    rank=210,
)
