"""Says which sums are differences: those of few terms for each of many results, written out or as matrix products, and those that lose too much."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.chance import CHANCE
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import elements
from precheck.observe.shadow.operations import Operation, Value

TERMS = Limit(4, "terms")
"""A sum of so few terms counts as a difference: the coordinates of a point, a quaternion or a plane."""
RESULTS = Limit(8, "results")
"""If so many of these short sums cancel, that is no chance. A single one cancels by five bits once in 32 times."""


def reduced(operation: Operation, value: Value) -> bool:
    """Whether a reduction is a difference, and not a sum that happens to be small.

    Either it adds up few terms for each of many results, such as a product of coordinates, written out or as a matrix product: by chance some results
    are small beside their terms, but not all. Or one rounding has grown a million times by then. Numbers cancel to a g-th of their size, in one sum
    or in several in a row, with a chance of 1/g.
    """
    few = elements(value) >= RESULTS and 1 < _terms(operation, value) <= TERMS
    return few or CHANCE * value.drift >= value.rounded > 0


def _terms(operation: Operation, value: Value) -> float:
    """How many terms each result adds up: in a product of matrices as many as a row of the first one has elements."""
    if operation.base in ops.MATRIX_PRODUCTS:
        shape = operation.inputs[ops.MATRIX_PRODUCTS[operation.base][0]].shape
        return shape[-1] if shape else 1
    if operation.base in ops.PRODUCTS:
        return math.inf  # of a vector or a window, which is not known here
    return max(map(elements, operation.inputs), default=0) / max(1, elements(value))
