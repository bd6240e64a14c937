"""The rule `coarse-recipe`."""
