"""Finds where an op belongs: its source line, its module, its step."""
