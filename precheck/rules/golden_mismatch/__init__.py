"""The rule `golden-mismatch`."""
