"""When the rule fires, what to do about it, and its rank."""

MEANING = "finite inputs gave Inf or NaN where the reference is finite"
REMEDY = "compute this module in float32 (a nested torch.autocast(..., enabled=False) and .float()), or scale its input down, and undo this later"
RANK = 10
