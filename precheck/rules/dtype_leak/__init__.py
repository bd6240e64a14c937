"""The rule `dtype-leak`."""
