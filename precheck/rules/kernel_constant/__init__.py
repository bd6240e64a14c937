"""The rule `kernel-constant`."""
