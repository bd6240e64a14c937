"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "headroom",
    "values come close to the largest that float16 holds",
    "they overflow if they become a few times larger: keep this module in float32, or scale it down",
    rank=170,
)
