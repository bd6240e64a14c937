"""When the rule fires, what to do about it, and its rank."""

MEANING = "float16 gradients became zero because there is no loss scale, or too small a one"
REMEDY = "use a GradScaler (16-mixed), or bfloat16"
RANK = 100
