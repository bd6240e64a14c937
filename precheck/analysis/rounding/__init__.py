"""Rounding errors of ops, functions and loops in a watched run: those that correct code in this precision would not have."""
