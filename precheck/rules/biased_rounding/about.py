"""What the rule says of itself."""

from precheck.findings import Rule

ABOUT = Rule(
    "biased-rounding",
    "a quantiser's rounding errors have a mean: a cast truncates, or noise is added before rounding to nearest",
    "round before a cast to integers; for stochastic rounding add uniform noise of 0 to 1, then take the floor",
    rank=33,
)
