"""The rule `missing-gradient`."""
