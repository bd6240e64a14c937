"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "biased-rounding",
    "a quantiser's rounding errors have a mean: a cast that cuts off, noise that is added to what is rounded to nearest",
    "round before a cast to integers; to round by chance, floor what uniform noise of 0 to 1 was added to",
    rank=33,
)
