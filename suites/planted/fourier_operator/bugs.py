"""No bugs are planted here: this network counts for what healthy code is accused of."""

BUGS = []
