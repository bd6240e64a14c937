"""Finds guards against division by zero that rounding noise passes: a program checks whether a number is near zero, and divides by it if not.

A spread, an area or a determinant that is zero in exact arithmetic is rounding noise in the run. The noise of a coarse format may lie above the
guard's bound, and that of float32 below it. The shadow follows the run's answer and divides by its own noise, or by zero. Both results are garbage,
and a tanh or a clamp may make them equal, so that no later op shows the error.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.facts import Readers
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import elements
from precheck.analysis.walks import Walk
from precheck.observe.shadow.operations import Operation

CLEAR = Limit(
    16.0, "times",
    """A guard failed if its comparison lets a divisor through that is this far above the bound, while the reference's is below the bound. A few
    roundings of one number make no such gap.""",
)  # fmt: skip
PASSED_ON = ops.MOVING | ops.SCATTERING | ops.FILLING | {"sqrt"}
"""Ops that move numbers, or replace some of them."""
DIVIDING = ops.RECIPROCALS | ops.LOGARITHMS | {"rsqrt"}
"""Ops with a pole where their last operand is zero."""
NEAR = 16
"""The most values that a search for a divisor visits."""


def divided_by(guard: Operation, readers: Readers) -> Operation | None:
    """The op that divides by a number which a comparison let through, if it is noise that the reference's own comparison would reject."""
    if guard.let_through is None or guard.let_through.apart < CLEAR or not guard.inputs:
        return None
    walk = Walk(guard.inputs[:1], NEAR)
    for value in walk:
        for reader in readers.get(value, ()):
            if reader.base in DIVIDING and reader.inputs[-1] is value and reader.phase == "forward":
                return reader
            if reader.base in PASSED_ON:
                walk.follow(made for made in reader.outputs if elements(made) >= elements(value))
    return None
