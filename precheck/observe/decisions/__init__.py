"""Decisions and random draws that one run makes and another follows."""
