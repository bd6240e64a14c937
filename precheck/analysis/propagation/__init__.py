"""How errors travel through the graph of a watched run: where one entered, which op owns it, and whether it reaches a result."""
