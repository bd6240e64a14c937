"""The rule's name, meaning, remedy and rank."""

from precheck.findings import Rule

ABOUT = Rule(
    "headroom",
    "values come close to the largest that float16 holds",
    "they overflow if they grow a few times: keep this module in float32, or scale it down",
    rank=170,
)
