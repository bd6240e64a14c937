"""Compares two models that should compute the same function: runs both, matches their parameters and modules, and judges the differences."""
