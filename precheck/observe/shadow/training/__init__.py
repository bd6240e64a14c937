"""What a watched run shows of training: loss scales, gradients, optimizers' steps, and how much of each update arrives."""
