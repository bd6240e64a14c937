"""Recognises what a difference is made of and what it leaves: the low tensor behind its terms, a compensated sum's remainder, what codes lost."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.provenance import absolute_error, elements
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import BITS_ROUNDED, Operation, Value
from precheck.observe.shadow.signed_terms import before_whole_copies, difference_of, signed_terms, takes_back


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


def takes_from_codes(operation: Operation) -> bool:
    """Whether an op subtracts a number from what a quantiser has made of it, or the reverse: x and (x / s).to(float8) * s, by any scales and bounds.

    A straight-through gradient makes this difference, and so does error feedback. The difference is what rounding to codes has lost.
    """
    terms = difference_of(operation)
    if terms is None:
        return False
    first, second = map(before_whole_copies, terms)
    return _made_of_codes(first, second) or _made_of_codes(second, first)


def takes_from_bits(operation: Operation, value: Value) -> bool:
    """Whether an op subtracts from a number what is left of it when lower bits are cut off, as where it is split into halves.

    In the reference nothing is cut off, so all of the difference is zero there, which two numbers that are not the same do not give.
    """
    cut = any(given.maker is not None and given.maker.name == BITS_ROUNDED for given in operation.inputs)
    return cut and operation.base in ops.SUMS and math.isinf(value.call_error)


def _made_of_codes(made: Value, given: Value) -> bool:
    """Whether `made` is `given`, scaled, rounded to a float of eight bits and scaled back."""
    walk = Walk([(made, False)], NEARBY)
    for value, coded in walk:
        if coded and before_whole_copies(value) is given:
            return True
        maker = value.maker
        if maker is not None and maker.base in ops.SCALING | ops.WHOLE_COPIES | ops.BOUNDS_BELOW:
            walk.follow((each, coded or value.dtype.startswith("float8")) for each in maker.inputs)
    return False


def remainder_of(operation: Operation) -> Value | None:
    """The sum t = s + y whose remainder an op makes: (s - t) + y, or (t - s) - y. What t has lost is then known, and may be added later."""
    if operation.base not in ops.SUMS:
        return None
    given = _terms(operation)
    takers = [maker for value in given if (maker := value.maker) is not None and takes_back(maker)]
    totals = ((total, _terms(maker)) for maker in takers for total in _terms(maker))
    return max((total for total, others in totals if (added := _terms(total.maker)) & given and added & others), key=_number, default=None)


def _number(value: Value) -> int:
    return value.maker.number if value.maker is not None else 0


def _terms(operation: Operation | None) -> set[Value]:
    """The terms of a sum, before copies."""
    return set() if operation is None else {before_whole_copies(value) for value, _ in signed_terms(operation)}
