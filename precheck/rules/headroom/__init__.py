"""The rule `headroom`."""
