"""When the rule fires, what to do about it, and its rank."""

MEANING = "a quantiser's scale does not fit the tensor: more is lost at an end of the format than by rounding"
REMEDY = "take the scale from this tensor's greatest magnitude (fp8-current instead of fp8-delayed), or update the history; round powers of two up"
RANK = 32
