"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "wrong-scale",
    "the scale or the Hadamard matrix of a quantised tensor does not cancel: wrong axis, order, step, zero point or rotation",
    "take codes out as they were packed; dequantise by the scale that the tensor was quantised with; rotate both operands of a product "
    "by one matrix, or rotate back by its transpose",
    rank=31,
)
