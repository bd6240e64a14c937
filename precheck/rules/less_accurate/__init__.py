"""The verdict that two implementations are the same function, but one has too much rounding error.

The distance of a run from its own exact run is its rounding error. It is compared with noise runs of the reference, and with the reference's own
rounding error.
"""

MEANING = "one of two implementations of a function has more error than rounding explains; as a note: it is the reference"
REMEDY = "compute in float32 at the place named, as the more accurate of the two does"
GIVEN_BY = "pairs"
