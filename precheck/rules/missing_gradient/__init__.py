"""When the rule fires, what to do about it, and its rank."""

MEANING = "a parameter has a gradient in the reference and none here"
REMEDY = "look for a cast to integers, .data or .item() that only this precision reaches"
RANK = 130
