"""When the rule fires, what to do about it, and its rank."""

MEANING = "a recipe of low-precision products works as defined and leaves little of a layer's product: it is too coarse for this layer"
REMEDY = "keep this layer in bfloat16 (precheck.layers_to_keep finds which), take a finer recipe for it, or smooth the outlier channel that is named"
RANK = 125
