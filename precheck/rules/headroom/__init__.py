"""When the rule fires, what to do about it, and its rank."""

MEANING = "values come close to the largest that float16 holds"
REMEDY = "they overflow if they become a few times larger: keep this module in float32, or scale it down"
RANK = 170
