"""The rule `kernel-gradient`."""
