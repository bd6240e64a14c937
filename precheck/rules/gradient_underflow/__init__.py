"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "gradient-underflow",
    "float16 gradients became zero because there is no loss scale, or too small a one",
    "use a GradScaler (16-mixed), or bfloat16",
    rank=100,
)
