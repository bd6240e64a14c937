"""The rule `kernel-fallback`."""
