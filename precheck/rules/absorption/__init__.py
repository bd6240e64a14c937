"""The rule `absorption`."""
