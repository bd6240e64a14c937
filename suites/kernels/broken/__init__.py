"""Kernels that are broken as real ones were."""
