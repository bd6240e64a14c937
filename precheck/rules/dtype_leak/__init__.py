"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "dtype-leak",
    "the float32 run itself stores low-precision results; as a warning too: a float32 table turns low-precision activations into float32",
    "remove the cast, or make its dtype an argument; cast a table to the dtype of the tensor that it is combined with",
    rank=190,
)
