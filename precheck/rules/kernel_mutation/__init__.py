"""A call changes its inputs. They lie between guards in separate storages, whose bits must be the same after the call. An output in the
memory of an input is a fault too, unless the reference's lies there as well: who writes into one of them changes the other.
"""

MEANING = ("a kernel writes into its inputs, outside their bounds, or into the gradient that it was given; or returns an input's memory as its own "
           "result")  # fmt: skip
REMEDY = "write into newly allocated memory"
GIVEN_BY = "kernels"
EXACT = True
