"""When the rule fires, what to do about it, and its rank."""

MEANING = "the scale or the Hadamard matrix of a quantised tensor does not cancel: wrong axis, order, step, zero point or rotation"
REMEDY = ("take codes out as they were packed; dequantise by the scale that the tensor was quantised with; rotate both operands of a product by one "
          "matrix, or rotate back by its transpose")  # fmt: skip
RANK = 31
