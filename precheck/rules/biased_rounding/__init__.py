"""When the rule fires, what to do about it, and its rank."""

MEANING = ("a quantiser's rounding errors do not average out: a cast truncates, noise is added before rounding to nearest, or is the same in every "
           "step")  # fmt: skip
REMEDY = "round before a cast to integers; for stochastic rounding add uniform noise of 0 to 1, then take the floor, and draw anew in each step"
RANK = 33
