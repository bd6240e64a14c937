"""Finds variances by moments, E[x²] - E[x]², which lose the digits of a mean that is large beside the spread."""

from __future__ import annotations

from precheck import ops
from precheck.analysis import causes
from precheck.analysis.walks import Walk
from precheck.observe.shadow.operations import Operation, Value

SCALED = frozenset({"mul", "div"})
MEANS = ops.SUMS | ops.MOVING | ops.AVERAGING | SCALED
"""Ops that a mean is made of."""


def squares(operation: Operation, cause: Operation) -> bool:
    """Whether a term of a difference is the square of the result of `cause`, or of another op on its line: a variance as E[x²] - m².

    The derivative of E[x²] - m² by m is -2m, so an error of m is multiplied by 2m. The derivative of E[(x - m)²] is 0, so there m may be rounded.
    """
    bases = (base for term in operation.inputs for base in _squared(term))
    return any(base is causes.before_copies(cause.outputs[0]) or (base.maker is not None and base.maker.line == cause.line) for base in bases)


def hold(operation: Operation, cause: Operation) -> bool:
    """Whether the rounding of `cause` is in both terms of a variance by moments, E[x²] - E[x]².

    Its derivative by x is 2 (x - E[x]) / n. So the rounding of x cancels as the terms do, and is not what the difference enlarges.
    """
    for term, other in (operation.inputs, operation.inputs[::-1]) if len(operation.inputs) == 2 else ():
        averaged = Walk(_squared(term), causes.BEHIND)
        for value in averaged:
            averaged.follow(value.maker.inputs if value.maker is not None and value.maker.base in MEANS else ())
        if not averaged.reached.isdisjoint(cause.outputs) and not causes.ancestors([other]).isdisjoint(cause.outputs):
            return True
    return False


def _squared(term: Value) -> list[Value]:
    """The tensors whose square a term is. Empty if it is no square."""
    maker = causes.before_copies(term).maker
    while maker is not None and maker.base in SCALED and len(maker.inputs) == 1:
        maker = causes.before_copies(maker.inputs[0]).maker
    bases = [] if maker is None else [causes.before_copies(value) for value in maker.inputs]
    power = maker is not None and maker.base == "pow" and maker.scalars == (2.0,)
    product = maker is not None and maker.base == "mul" and len(bases) == 2 and bases[0] is bases[1]
    return bases if power or product else []
