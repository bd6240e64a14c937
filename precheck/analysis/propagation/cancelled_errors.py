"""Finds errors that cancel later, in a quotient of two terms that share them."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.attribution import drift
from precheck.analysis.propagation.provenance import elements
from precheck.observe.shadow.operations import Operation, Value


def abated(cause: Operation | None, value: Value) -> bool:
    """Whether a value has less error than the op that caused it, because a quotient of two terms with a common error lies between.

    Between the quotient and the value there are only products and moves. Chance makes the square of an error smaller by up to 4/√n of itself: four
    standard deviations.
    """
    if cause is None or drift(value) ** 2 >= (1 - 4 / math.sqrt(elements(value) or 1)) * drift(cause.outputs[0]) ** 2:
        return False
    maker = value.maker
    while maker is not None and maker is not cause and maker.base in ops.MOVING | ops.UNROUNDED | ops.CASTS | ops.SCALING:
        terms = [term for term in maker.inputs if drift(term)]
        if maker.base == "div" and len(terms) > 1:
            return any(map(drift, set.intersection(*(causes.ancestors([term]) for term in terms))))
        maker = terms[0].maker if len(terms) == 1 else None
    return False
