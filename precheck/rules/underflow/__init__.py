"""The rule `underflow`."""
