"""The judge of kernels: inputs that nobody chose, what rounding explains of each result, and which class of fault is left."""
