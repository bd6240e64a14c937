"""When the rule fires, what to do about it, and its rank."""

MEANING = "the float32 run itself stores low-precision results; as a warning too: a float32 table turns low-precision activations into float32"
REMEDY = "remove the cast, or make its dtype an argument; cast a table to the dtype of the tensor that it is combined with"
RANK = 190
