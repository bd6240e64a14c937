"""The fault depends on the size: for the example's sizes, or for multiples of a tile, the candidate is right."""

MEANING = "a kernel is right for some sizes and wrong for others: a last tile that is not full, one element, no element, more than one block"
REMEDY = "mask loads and stores of the last tile, and let the grid follow the size"
GIVEN_BY = "kernels"
