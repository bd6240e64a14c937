"""The rule `nan`."""
