"""The rule `accumulated-drift`."""
