"""The rule `overflow`."""
