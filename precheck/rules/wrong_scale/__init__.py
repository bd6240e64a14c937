"""The rule `wrong-scale`."""
