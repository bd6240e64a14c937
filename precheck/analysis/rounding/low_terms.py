"""Finds the low tensor behind the terms of a difference. They may be wide, if wide sums have added little to it since it was stored."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.provenance import absolute_error, elements
from precheck.analysis.propagation.walks import NEARBY
from precheck.observe.shadow.operations import Operation, Value


def stored_low(operation: Operation) -> list[Value]:
    """The terms of a difference that were stored low; or the low tensor that both are parts of, if wide sums added only little to it since: x + δ.

    A sum has the absolute error of its terms. So if the low tensor makes most of the sum and of its error, no digit has come back, and two parts of
    the sum have as many digits as two parts of the low tensor."""
    stored = [source for source in operation.inputs if source.kept_low]
    value, *others = {causes.before_copies(source) for source in operation.inputs}
    for _ in range(NEARBY if len(operation.inputs) == 2 and not stored and not others else 0):
        maker = value.maker
        term = None if maker is None or maker.base not in ops.SUMS else causes.worst_term(maker)
        if term is None or elements(term) != elements(value) or not _hands_on(term, value):
            break
        value = causes.before_copies(term)
        if term.kept_low:
            return [term]
    return stored


def _hands_on(term: Value, value: Value) -> bool:
    """Whether a sum is about as large as one of its terms, and has most of its error from it."""
    return absolute_error(term) >= math.sqrt(1 - causes.MADE_BY_OP**2) * absolute_error(value) and term.norm / 2 <= value.norm <= 2 * term.norm
