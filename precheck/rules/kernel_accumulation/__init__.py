"""The error grows with the length of a dimension, measured in errors of correct implementations."""

MEANING = "a kernel keeps a sum in a low format: its error grows with the number of terms"
REMEDY = "add up in float32, whatever the inputs are stored in"
GIVEN_BY = "kernels"
