"""The rule `golden-stale`."""
