"""What precheck sets in torch for a block (autocast, tf32, fp8), and how it takes apart tensors that are not dense."""
