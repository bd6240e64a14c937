"""The rule `unstable-reference`."""
