"""The rule `clipping`."""
