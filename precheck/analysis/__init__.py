"""Derives facts from the records of a run. It does not decide which facts are faults, and it writes no messages."""
