"""When the rule fires, what to do about it, and its rank."""

MEANING = "the run differs from the golden because it decided otherwise; a float32 run that takes the same decisions agrees with it"
REMEDY = "nothing, unless the decisions matter: then compute what is compared in float32"
RANK = 210
