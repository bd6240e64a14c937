"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "integer-rounding",
    "whole numbers (positions, indices, counts, labels, timesteps) are stored in a format that cannot hold them",
    "keep them as integers, or in float32 until they have been turned into what the model reads",
    rank=50,
)
