"""What can be told from records of a run: facts, with no opinion on which of them are faults, and no words."""
