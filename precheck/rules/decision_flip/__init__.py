"""The rule `decision-flip`."""
