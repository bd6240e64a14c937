"""When the rule fires, what to do about it, and its rank."""

MEANING = "a cast of a weight is used after the weight has changed: autocast's own, or one that the code keeps"
REMEDY = "enter autocast anew for each forward pass (cache_enabled=False where it must span a step), and cast a weight where it is used"
RANK = 135
