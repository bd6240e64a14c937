"""When the rule fires, what to do about it, and its rank."""

MEANING = "a subtraction of nearly equal low-precision numbers leaves little but their rounding errors"
REMEDY = "subtract in float32 and before rounding, or use a form without the subtraction (log1p, expm1, a direct difference)"
RANK = 70
