"""The rule's name, meaning, remedy and rank."""

from precheck.findings import RuleInfo

ABOUT = RuleInfo(
    "stale-cast",
    "a cast of a weight is used after the weight has changed: autocast's own, or one that the code keeps",
    "enter autocast anew for each forward pass (cache_enabled=False where it must span a step), and cast a weight where it is used",
    rank=135,
)
