"""The rule `kernel-contract`."""
