"""Self-tests: a check that passed is made again with faults planted into the user's code, and says which of them it catches."""
