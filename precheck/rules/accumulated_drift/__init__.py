"""When the rule fires, what to do about it, and its rank."""

MEANING = "an error beyond what rounding explains, in a module's result, an output of the model, a gradient, or a state that a loop carries"
REMEDY = "keep this module, or the loop's state, in float32, or make the values that it amplifies (positions, tables, sums) in float32"
RANK = 120
