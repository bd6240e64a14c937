"""Runs models and records numbers. Nothing here judges them."""
