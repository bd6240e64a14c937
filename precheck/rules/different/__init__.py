"""The rule `different`."""
