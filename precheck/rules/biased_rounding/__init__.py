"""The rule `biased-rounding`."""
