"""What is written down of a run's tensors: hooks that see them, and the numbers of a record."""
