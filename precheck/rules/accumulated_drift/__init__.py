"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "accumulated-drift",
    "an error beyond what rounding explains, in a module's result, an output of the model, a gradient, or a state that a loop carries",
    "keep this module, or the loop's state, in float32, or make the values that it amplifies (positions, tables, sums) in float32",
    rank=120,
)
