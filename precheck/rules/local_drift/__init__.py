"""When the rule fires, what to do about it, and its rank."""

MEANING = "an op has a larger error than one rounding of its result explains, as a sum kept in the low format has"
REMEDY = "ask for a float32 accumulator (dtype=torch.float32), or cast the input up"
RANK = 80
