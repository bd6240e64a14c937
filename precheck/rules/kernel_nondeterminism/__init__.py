"""Results differ when the same call is repeated, on the same tensors, with another number of threads or on another
stream. The message says by how much.
"""

MEANING = "a kernel gives other results for the same tensors, and its reference does not"
REMEDY = "let one program write each element, or sort before adding"
GIVEN_BY = "kernels"
EXACT = True
