"""When the rule fires, what to do about it, and its rank."""

MEANING = "additions left the accumulator unchanged while the reference moved: sums, averages, counters, states, merged weights"
REMEDY = "keep the accumulator in float32"
RANK = 90
