"""The user's model: what frameworks wrap around it, the inputs that it takes, its formats, and faults that are planted into it."""
