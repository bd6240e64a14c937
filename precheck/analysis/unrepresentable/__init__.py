"""Numbers that the format of a watched run did not hold: Inf and NaN, lost numbers, whole numbers, and the exceptions that follow."""
