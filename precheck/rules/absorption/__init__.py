"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "absorption",
    "additions left the accumulator unchanged while the reference moved: sums, averages, counters, states, merged weights",
    "keep the accumulator in float32",
    rank=90,
)
