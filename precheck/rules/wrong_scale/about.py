"""The rule's name, meaning, remedy and rank."""

from precheck.findings import Rule

ABOUT = Rule(
    "wrong-scale",
    "the scale or the Hadamard matrix of a quantised tensor does not cancel: wrong axis, order, step, zero point or turn",
    "dequantise by the very scale that the tensor was quantised with; turn both operands of a product by one matrix, or turn back by its transpose",
    rank=31,
)
