"""Guards that rounding gets past: a program asks whether a number is next to nothing, and divides by what is not.

A spread, an area or a determinant that is zero in exact arithmetic is rounding noise in the run. The noise of a coarse format lies above a bound
that the noise of a fine one lies below. The shadow follows the run's answer and divides by its own noise, or by zero. Both results are garbage, and
a tanh or a clamp makes them equal: nothing that follows can tell.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.facts import Readers
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import LOGARITHMS, MOVING, elements
from precheck.observe.shadow.operations import Operation

CLEAR = Limit(
    16.0, "times",
    """that a divisor lies above the bound which is to keep it from zero, and the reference's below that. A few roundings of one number are not so far
    apart.""",
)  # fmt: skip
PASSED_ON = MOVING | ops.SCATTERING | ops.FILLING | {"sqrt"}
"""Ops that move numbers about, or put others in the places of some."""
DIVIDING = ops.RECIPROCALS | LOGARITHMS | {"rsqrt"}
"""Ops with a pole at zero, by their last operand."""
NEAR = 16
"""Values looked through for a divisor."""


def divided_by(guard: Operation, readers: Readers) -> Operation | None:
    """The op that divides by what a comparison has let through, as noise that the reference's own comparison would not have let through."""
    if guard.let_through is None or guard.let_through.apart < CLEAR or not guard.inputs:
        return None
    waiting, seen = [guard.inputs[0]], {guard.inputs[0]}
    while waiting and len(seen) < NEAR:
        value = waiting.pop(0)
        for reader in readers.get(value, ()):
            if reader.base in DIVIDING and reader.inputs[-1] is value and reader.phase == "forward":
                return reader
            kept = reader.outputs if reader.base in PASSED_ON else ()
            fresh = [made for made in kept if made not in seen and elements(made) >= elements(value)]
            seen.update(fresh)
            waiting += fresh
    return None
