"""The rule `kernel-mutation`."""
