"""Shadow execution: every op of a block beside the reference precision, and what its steps and scalers did."""
