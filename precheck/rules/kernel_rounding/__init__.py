"""The rule `kernel-rounding`."""
