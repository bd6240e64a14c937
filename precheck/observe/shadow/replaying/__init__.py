"""Computes an op, or a call of a user function, again in the reference precision."""
