"""Follows scales and rotations from where they are computed to where they are divided out again, and finds those that are not."""
