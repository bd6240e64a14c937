"""The rule `kernel-stale`."""
