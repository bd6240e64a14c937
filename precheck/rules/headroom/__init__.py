"""When the rule fires, what to do about it, and its rank."""

MEANING = "values come close to the largest that float16 holds"
REMEDY = "keep this module in float32, or scale its values down: they overflow if they become a few times larger"
RANK = 170
