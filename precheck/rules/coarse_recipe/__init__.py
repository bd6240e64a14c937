"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "coarse-recipe",
    "a recipe of low-precision products works as defined and leaves little of a layer's product: it is too coarse for this layer",
    "keep this layer in bfloat16 (precheck.layers_to_keep finds which), take a finer recipe for it, or smooth the outlier channel that is named",
    rank=125,
)
