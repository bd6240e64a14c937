"""When the rule fires, what to do about it, and its rank."""

MEANING = "GradScaler skipped steps for a cause that no loss scale removes, or more often than calibration and growth explain"
REMEDY = "compute the op named in float32, or scale its input down; where only the scale is too high, lower init_scale or grow it less often"
RANK = 150
