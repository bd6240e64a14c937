"""Kernels that are right: other formulations of their references."""
