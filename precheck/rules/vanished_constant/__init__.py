"""When the rule fires, what to do about it, and its rank."""

MEANING = "an eps, clamp bound, mask fill or decay given as a Python number is zero or a no-op in this format"
REMEDY = "give a constant that the format holds (float16: at least 6e-5 below a fraction, next to 1 at least 1e-3), or guard in float32"
RANK = 40
