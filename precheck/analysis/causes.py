"""Which rounding an error that is amplified comes from: back along what carried it, to the last op that made half of it.

Errors add up in squares. So an op whose own rounding is half of what is amplified is worth repairing, whatever came before it. It is also nearest
to where it matters. In a sum it is absolute errors that add up, in all else relative ones.
"""

from __future__ import annotations

import math

from precheck import formats, ops
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import CONSTANTS, DRAWN, GUARDS, MOVING, REDUCTIONS, SUMS, determined, elements, passed, zero_origin
from precheck.observe.shadow.operations import Operation, Past, Value

HALF = Limit(
    0.5, "share of the error",
    """Share of an error from which it is an op's own; the rest of it, √(1 - ½²), is what came in.""",
)  # fmt: skip
ADDING = SUMS | MOVING | GUARDS | ops.CUTS
"""Ops that add to numbers, or cut them, and leave them what they are: coordinates, times, phases."""
SWALLOWED = Limit(0.25, "ratio of root mean squares", "of a sum's error to its smaller term, from which less than two bits of what it adds arrive")
BEHIND = 64
"""Ops looked through for what a term of a difference is made of."""


def entered(
    value: Value | None, known: dict[Value, Operation] | None = None, since: Value | None = None, *, apart: bool = False
) -> Operation | None:
    """The op whose rounding a value's error is; None where the block was given it. `known` remembers answers, for chains asked about often.

    Of what has been made of `since` by sums, the op after it: its own error is no part of what is asked about. Nor is, of elements that are taken
    `apart`, what is added to all of them.
    """
    cause, behind = None, []
    known = {} if known is None else known
    while value is not None and value.maker is not None and value.drift:
        cause = known.get(value, value.maker)
        behind.append(value)
        if value.past is not None:
            cause = value.past.rounding or cause
            break
        source = _carrier(cause, apart=apart)
        if value in known or source is None or cause.opaque or _its_own(cause, value, source):
            break
        if source is since and cause.base in SUMS | MOVING:
            break
        value = source
    known.update((each, cause) for each in behind if cause is not None)
    return cause


def subnormal(value: Value) -> float:
    """What rounding to its format's smallest spacing costs a value, relative to its norm: 1/√12 of a spacing each. 0 where it is stored wide."""
    size = value.norm / math.sqrt(elements(value) or 1)
    return formats.of_dtype(value.dtype).min_subnormal / math.sqrt(12) / size if value.low and size else 0.0


def own(value: Value) -> float:
    """What storing a value costs, relative to its norm: one rounding of its format, or of its subnormals. 0 where it is stored wide."""
    return max(value.rounded, subnormal(value)) if value.low else 0.0


def taken(operation: Operation) -> tuple[Value, ...]:
    """The inputs that an op makes its result of. A tensor that a copy writes over is none."""
    return operation.inputs[-1:] if operation.base == "copy" else operation.inputs


def only_moved(operation: Operation, value: Value) -> bool:
    """Whether an op has moved numbers that were stored in that format before, and rounded none."""
    return operation.base in MOVING and any(source.dtype == value.dtype for source in taken(operation))


def kind(cause: Operation) -> str:
    """The rule that a rounding goes by: a sum whose terms cancel, one that swallows what it adds (or is stored so), or any other."""
    value = cause.outputs[0]
    if cause.absorbed is not None and cause.absorbed.share >= HALF:
        return "absorption"
    if cause.base in SUMS and value.drift > 2 * max(cause.drift_in, value.rounded):
        return "cancellation"
    before = cause.inputs[0].maker if cause.base == "_to_copy" and cause.inputs else cause
    terms = [term.norm / math.sqrt(elements(term) or 1) for term in before.inputs] if before is not None and before.base in SUMS else []
    return "absorption" if len(terms) == 2 and absolute(value) >= SWALLOWED * min(terms) > 0 else "amplified-rounding"


def shares_operand(operation: Operation) -> bool:
    """Whether the terms of a difference are parts of one tensor, or one term is the other, added to or cut: x₀ + Σδ - x₀, x - floor(x).

    It gives back what the larger term holds beyond the other, and adds no error of its own: what is lost was lost when that term was stored. Parts
    of a joined tensor, such as a workspace of products, do not count: each may be another of the tensors that were joined.
    """
    if operation.base not in SUMS or len(operation.inputs) != 2 or not operation.outputs:
        return False
    one, other = (moved(value) for value in operation.inputs)
    if any(_joined(each) and elements(each) > elements(operation.outputs[0]) for each in (one, other)):
        return False
    return one is other or _made_of(one, other) or _made_of(other, one)


def lost_between(operation: Operation, term: Value, known: dict[Value, Operation]) -> Operation | None:
    """Of such a difference, the op whose rounding it shows. A rounding that both terms have cancels: of these it is one that the other has not."""
    other = next((value for value in operation.inputs if value is not term), term)
    if moved(term) is moved(other):
        return entered(term, apart=True)
    cause = entered(term, known)
    common = cause is not None and other.maker is not None and cause.number <= other.maker.number
    return entered(term, since=other) if common else cause


def absolute(value: Value) -> float:
    """Root mean square of the error; 0 where the reference is zero, beside which no error has a size."""
    return value.drift * value.norm / math.sqrt(elements(value) or 1) if math.isfinite(value.drift) else 0.0


def _carrier(operation: Operation, *, apart: bool = False) -> Value | None:
    """The input that most of the error comes with. A draw has only the form of what it is given.

    Of elements that are taken `apart`, the error of what a sum adds to many of them goes again: it is an input with fewer elements.
    """
    if operation.base in DRAWN:
        return None
    by = absolute if operation.base in SUMS | MOVING else _relative
    given = taken(operation)
    if apart and operation.base in SUMS and operation.outputs:
        given = tuple(each for each in given if elements(each) >= elements(operation.outputs[0]))
    source = max(given, key=by, default=None)
    return source if source is not None and source.drift else None


def _relative(value: Value) -> float:
    return value.drift


def _its_own(operation: Operation, value: Value, source: Value) -> bool:
    if operation.base in MOVING and (not value.low or only_moved(operation, value)):
        return False
    summed = operation.base in SUMS
    if operation.base in REDUCTIONS and not summed and own(value) >= HALF * value.drift:
        return True  # errors of n terms are independent, and less of their sum than of each
    if summed and not shares_operand(operation) and value.drift > 2 * operation.drift_in:
        return True  # a cancellation
    carried, total = (absolute(source), absolute(value)) if summed else (source.drift, value.drift)
    if summed and elements(source) > elements(value):
        carried = min(carried, math.sqrt(1 - HALF**2) * total)  # a part of it, whose error is not known by itself
    if 2 * carried < total:
        return not summed or elements(source) <= elements(value) or value.low
    return own(value) >= HALF * value.drift and carried <= math.sqrt(1 - HALF**2) * total


def moved(value: Value) -> Value:
    """What was moved about, or cast, to become the value. What several tensors were joined to is none of them, unless they are parts of one."""
    roots = _roots(value)
    if len(roots) == 1:
        return roots.pop()
    while len(parts := _parts(value)) == 1:
        (value,) = parts
    return value


def sources(value: Value) -> set[Value]:
    """The tensors that were moved about, cast, chosen from or joined to become the value, of the nearest `BEHIND` that are met on the way."""
    return _roots(value)


def _joined(value: Value) -> bool:
    """Whether several tensors were joined to become the value."""
    return len(_roots(value)) > 1


def _roots(value: Value) -> set[Value]:
    """The tensors that were moved about, cast or joined to become the value, of the nearest `BEHIND` that are met on the way."""
    roots, waiting, seen = set(), [value], {value}
    while waiting:
        each = waiting.pop()
        parts = _parts(each) if len(seen) < BEHIND else set()
        if not parts:
            roots.add(each)
        waiting += parts - seen
        seen |= parts
    return roots


def _parts(value: Value) -> set[Value]:
    """The tensors that were moved about to become the value; constants beside them, such as the zero before a running sum, are none."""
    maker = value.maker
    sources = set(taken(maker)) if maker is not None and maker.base in MOVING else set()
    return {each for each in sources if each.maker is None or each.maker.base not in CONSTANTS - MOVING}


def _made_of(value: Value, other: Value) -> bool:
    """Also of a remainder that is written out, x - b * round(x / b): what was scaled has been cut in between."""
    waiting, seen = [(value, False, False)], {value}
    while waiting and len(seen) < BEHIND:
        made, scaled, cut = waiting.pop(0)
        maker = made.maker
        if maker is None or maker.base not in ADDING | ops.SCALING:
            continue
        scaled, cut = scaled or maker.base in ops.SCALING, cut or maker.base in ops.CUTS
        for source in maker.inputs:
            if (source is other or moved(source) is other) and (cut or not scaled):
                return True
            if source not in seen:
                seen.add(source)
                waiting.append((source, scaled, cut))
    return False


def given_low(value: Value) -> bool:
    """Whether the value was rounded by a cast, or as the result of one of torch's own modules, and only moved since. It is then stored low because
    the precision asks for it. The user's code did not compute it low. It may also be a gradient, which is derived, not written. Under autocast
    nobody has it otherwise, and projections, variance reductions and penalties subtract gradients.
    """
    source: Value | None = value
    while source is not None and source.maker is not None:
        maker = source.maker
        if maker.derived:
            return True
        if maker.base == "_to_copy" and not any(before.low for before in maker.inputs):
            return not maker.parameter and not any(_computed(before) for before in maker.inputs)
        if maker.base not in MOVING:
            return maker.plain
        source = maker.drifting
    return True


def stored_too_soon(operation: Operation, value: Value) -> bool:
    """Whether a tensor that no low number went into is subtracted from what the block has stored low. Subtracted before that cast, it would cost
    no digit.

    A number less its own rounding, or beside the same from elsewhere, is next to nothing in the reference.
    """
    stored = [source for source in operation.inputs if source.kept_low]
    at_hand = any(source.maker is None and not source.low for source in operation.inputs)
    return at_hand and bool(stored) and bool(value.norm) and determined(operation, value) and all(map(stored_here, stored))


def stored_here(value: Value) -> bool:
    """Whether it is what a cast of the user's made of a wide tensor that no low number went into, moved about at most."""
    maker = value.maker
    while maker is not None and maker.base in MOVING and maker.inputs and not (maker.base == "_to_copy" and not maker.inputs[-1].low):
        maker = maker.inputs[-1].maker
    if maker is None or maker.base != "_to_copy" or maker.inputs[-1].maker is not None:
        return False
    return not (maker.plain or maker.converts or maker.derived or maker.autocast or maker.parameter)


def _computed(value: Value) -> bool:
    """Whether the block has computed it, so that to store it low is a decision of its code."""
    return value.maker is not None and value.maker.base not in MOVING | CONSTANTS and not value.maker.plain


def past(value: Value) -> Past:
    """What walks back from a value find, written down before its ancestors are let go."""
    return Past(zero_origin(value) if value.zeros and value.maker is not None else None, entered(value), passed(value))
