"""The rule `kernel-mask`."""
