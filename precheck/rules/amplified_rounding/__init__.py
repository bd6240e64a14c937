"""The rule `amplified-rounding`."""
