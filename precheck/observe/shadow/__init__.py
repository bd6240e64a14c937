"""Shadow execution: each op of a watched block also runs in the reference precision. Optimizer steps and loss scalers are recorded too."""
