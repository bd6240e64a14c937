"""Follows numbers that a program rounds to codes under a scale: quantisers, packed integers, low floats with scales of blocks."""
