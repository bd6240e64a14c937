"""The rule `local-drift`."""
