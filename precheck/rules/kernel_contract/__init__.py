"""The fault needs no special size, layout, mask or earlier call, and a wider format does not remove it."""

MEANING = "a kernel computes another function: its formula, axis, scale, shape, dtype or treatment of NaN differs; as a warning: it refuses inputs"
REMEDY = "compare the formula with the reference's, term by term"
GIVEN_BY = "kernels"
