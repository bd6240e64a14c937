"""Goldens: the results of a float32 run, stored in a file for each test."""
