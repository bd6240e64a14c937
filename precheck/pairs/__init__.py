"""Two models that should be the same function: how both are run, matched and judged."""
