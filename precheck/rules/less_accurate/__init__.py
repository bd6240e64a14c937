"""The rule `less-accurate`."""
