"""The rule `kernel-stride`."""
