"""What correct rounding explains: the noise floor of a tensor between whole runs and of a kernel, and the tensors that are beyond it."""
