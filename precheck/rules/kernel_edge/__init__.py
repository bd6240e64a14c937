"""The rule `kernel-edge`."""
