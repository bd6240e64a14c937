"""The terms of the sums of a run, with their signs. Asks only the records, so that probes and analyses both use it."""

from __future__ import annotations

import math

from precheck import ops
from precheck.observe.shadow.operations import Operation, Value


def signed_terms(operation: Operation) -> list[tuple[Value, int]]:
    """The terms of a sum with their signs. Negative: the second operand of `sub`, the first of `rsub`, the second under `alpha=-1`."""
    if operation.base not in ops.SUMS:
        return []
    taken = {"sub": 1, "rsub": 0}.get(operation.base, 1 if -1 in operation.scalars else None)
    return [(value, -1 if place == taken else 1) for place, value in enumerate(operation.inputs)]


def difference_of(operation: Operation) -> tuple[Value, Value] | None:
    """The two terms of an op that subtracts one from the other. None if it does something else."""
    return _difference(signed_terms(operation))


def _difference(terms: list[tuple[Value, int]]) -> tuple[Value, Value] | None:
    return (terms[0][0], terms[1][0]) if len(terms) == 2 and terms[0][1] != terms[1][1] else None


def before_whole_copies(value: Value) -> Value:
    """The value of which this one is a copy, or the value itself."""
    while value.maker is not None and value.maker.base in ops.WHOLE_COPIES and len(value.maker.inputs) == 1 and not value.maker.converts:
        value = value.maker.inputs[0]
    return value


def takes_back(operation: Operation) -> bool:
    """Whether a sum subtracts a term from a sum that contains it, as Kahan summation computes its remainder, or a number's own rounding from it.

    (s + y) - s is the part of y that arrived in the sum. It is no accumulator, whatever s is. (s + y) + y is no such sum.
    """
    terms = signed_terms(operation)
    if _own_rounding(operation, terms):
        return True
    for value, sign in terms:
        maker = value.maker
        if maker is None or maker is operation or maker.base not in ops.SUMS:
            continue
        before = [(before_whole_copies(term), sign * each) for term, each in signed_terms(maker)]
        if any((before_whole_copies(term), -each) in before for term, each in terms if term is not value):
            return True
    return False


def _own_rounding(operation: Operation, given: list[tuple[Value, int]]) -> bool:
    """Whether an op subtracts a number from its own copy in another format, which is zero in the reference. Neighbours in one tensor differ there.
    A wide tensor without a shadow is another value in each op that reads it. If all differences are zero, it is the same tensor."""
    terms = _difference(given)
    if terms is None or terms[0] is terms[1] or any(made.drift != math.inf for made in operation.outputs):
        return False
    first, second = map(before_whole_copies, terms)
    return first is second or (first.maker is None and second.maker is None)
