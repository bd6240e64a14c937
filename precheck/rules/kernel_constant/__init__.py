"""Two random inputs give the same result, bit for bit, where the reference gives two different ones."""

MEANING = "a kernel gives the same result for all inputs"
REMEDY = "compute the result from the inputs"
GIVEN_BY = "kernels"
EXACT = True
