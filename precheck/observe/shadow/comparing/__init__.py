"""Compares the results of an op with their shadows, in few passes over the data."""
