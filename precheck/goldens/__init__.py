"""Goldens: what float32 gave, kept in a file a test."""
