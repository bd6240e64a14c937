"""The rule `rounding`."""
