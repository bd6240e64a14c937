"""Decisions of a run that differ from float32's: flips beside a reference run, choices among scores, branches of the program."""
