"""The rule `kernel-nondeterminism`."""
