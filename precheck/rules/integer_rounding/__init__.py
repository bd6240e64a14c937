"""The rule `integer-rounding`."""
