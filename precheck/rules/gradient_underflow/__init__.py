"""The rule `gradient-underflow`."""
