"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "biased-rounding",
    "a quantiser's rounding errors do not average out: a cast truncates, noise is added before rounding to nearest, or is the same in every step",
    "round before a cast to integers; for stochastic rounding add uniform noise of 0 to 1, then take the floor, and draw anew in each step",
    rank=33,
)
