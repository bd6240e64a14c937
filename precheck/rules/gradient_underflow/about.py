"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "gradient-underflow",
    "float16 gradients became zero for want of a loss scale",
    "use a GradScaler (16-mixed), or bfloat16",
    rank=100,
)
