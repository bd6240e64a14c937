"""Finds the rounding behind an amplified error. It walks back along the inputs that carry the error, to the last op that made half of it.

Squares of errors add up. So an op whose own rounding is half of the amplified error is worth repairing, whatever came before it, and it is the
nearest such op. In sums absolute errors add up, in all other ops relative ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from precheck import formats, ops
from precheck.analysis import chance
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import absolute_error, elements, ops_on_the_way, rms, zero_origin
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.op_notes import Past
from precheck.observe.shadow.operations import Operation, Value

MADE_BY_OP = Limit(0.5, "share of the error")
"""An op made an error if its own rounding is at least this share of it. Squares add up, so the inputs brought the other √(1 - ½²)."""
ADDING = ops.SUMS | ops.MOVING | ops.GUARDS | ops.CUTS
"""Ops that add to numbers or cut them, and keep their meaning: coordinates, times, phases."""
SWALLOWED = Limit(0.25, "ratio of root mean squares")
"""A sum swallows its smaller term if its error is at least this share of that term: less than two bits of the term arrive."""
RESULTS = Limit(8, "results")
"""If so many of these short sums cancel, that is no chance. A single one cancels by five bits once in 32 times."""
LINEAGE = 512
"""The most values that a search for all ancestors visits. A layer of a network has some thirty."""


def amplified_input(operation: Operation) -> Value | None:
    """The input whose error an op amplifies: as measured, or else that with the largest error."""
    if operation.amplifies is not None and operation.inputs:
        return operation.inputs[operation.amplifies]
    return max(operation.inputs, key=lambda value: value.drift, default=None)


def error_source(
    value: Value | None, known: dict[Value, Operation] | None = None, since: Value | None = None, *, apart: bool = False
) -> Operation | None:
    """The op whose rounding made a value's error, or None if the block was given the value. `known` caches answers for long chains.
    The walk ends at the sum that was made from `since`: the error of `since` itself does not count. If elements are subtracted from each other
    (`apart`), the error of what was added to all of them does not count either."""
    cause, behind = None, []
    known = {} if known is None else known
    while value is not None and value.maker is not None and value.drift:
        cause = known.get(value, value.maker)
        behind.append(value)
        if value.past is not None:
            cause = value.past.rounding or cause
            break
        source = _carrier(cause, value, apart=apart)
        if value in known or source is None or cause.opaque or _made_itself(cause, value, source):
            break
        if source is since and cause.base in ops.SUMS | ops.MOVING:
            break
        value = source
    known.update((each, cause) for each in behind if cause is not None)
    return cause


def subnormal_error(value: Value) -> float:
    """The error of rounding to the format's smallest spacing, relative to the value's norm: 1/√12 of a spacing for each element. 0 if stored wide."""
    size = rms(value)
    return formats.of_dtype(value.dtype).min_subnormal / math.sqrt(12) / size if value.low and size else 0.0


def storage_error(value: Value) -> float:
    """The error of storing a value, relative to its norm: as measured, or one rounding of its format or of its subnormals. 0 if it is wide."""
    return value.stored if value.stored is not None else max(value.rounded, subnormal_error(value)) if value.low else 0.0


def computed_from(operation: Operation, made: Value | None = None) -> tuple[Value, ...]:
    """The inputs that an op computes its result from. The tensor that a copy overwrites does not count.
    A scaler divides a list of n gradients at once: it computes each from the gradient at the same place, and from what is in no list."""
    if operation.base == "copy":
        return operation.inputs[-1:]
    many = len(operation.outputs)
    if made is None or many < 2 or not operation.name.startswith("_amp_foreach_") or made not in operation.outputs:
        return operation.inputs
    lists = len(operation.inputs) // many * many
    return operation.inputs[operation.outputs.index(made) : lists : many] + operation.inputs[lists:]


def only_moved(operation: Operation, value: Value) -> bool:
    """Whether an op only moved numbers that were stored in this format before, so that it rounded none."""
    return operation.base in ops.MOVING and any(source.dtype == value.dtype for source in computed_from(operation))


def casts_wide(operation: Operation) -> bool:
    """Whether an op only stores wide numbers, perhaps in a low format: a cast, a copy, or a factory such as `linspace`."""
    given = computed_from(operation)
    return (operation.base in ops.CASTS | {"copy"} or not given) and not any(source.low for source in given)


def stores_subnormal(operation: Operation, value: Value) -> bool:
    """Whether a cast of wide numbers makes most of an error, since they are subnormal in its format. (Weights and inputs are converted as the
    precision demands.) Any other op that only moves or picks elements passes errors on: each element keeps the error that it had.
    """
    return casts_wide(operation) and not operation.converts and subnormal_error(value) >= MADE_BY_OP * value.drift


def terms_cancel(operation: Operation) -> bool:
    """Whether a sum has twice the error of its terms, and of one rounding."""
    made = operation.outputs[0]
    return operation.base in ops.SUMS and made.drift > 2 * max(operation.drift_in, made.rounded)


def rule_for(cause: Operation) -> str:
    """The rule for a rounding: `cancellation`, `absorption` (a sum that swallows what it adds, or is stored so low), or `amplified-rounding`."""
    value = cause.outputs[0]
    if cause.absorbed is not None and cause.absorbed.share >= MADE_BY_OP:
        return "absorption"
    if terms_cancel(cause):
        return "cancellation"
    before = cause.inputs[0].maker if cause.base == "_to_copy" and cause.inputs else cause
    terms = [rms(term) for term in before.inputs] if before is not None and before.base in ops.SUMS else []
    return "absorption" if len(terms) == 2 and absolute_error(value) >= SWALLOWED * min(terms) > 0 else "amplified-rounding"


def shares_operand(operation: Operation) -> bool:
    """Whether the terms of a difference are parts of one tensor, or one was made from the other by adding or cutting: x₀ + Σδ - x₀, x - floor(x).
    Such a difference adds no error of its own: its digits were lost when the larger term was stored. Parts of a joined tensor, such as a workspace of
    products, do not count, since each may be a different one of the tensors that were joined."""
    if operation.base not in ops.SUMS or len(operation.inputs) != 2:
        return False
    one, other = (before_copies(value) for value in operation.inputs)
    if any(len(before_joins(each)) > 1 and elements(each) > elements(operation.outputs[0]) for each in (one, other)):
        return False
    return one is other or _made_of(one, other) or _made_of(other, one)


def rounding_shown(operation: Operation, term: Value, known: dict[Value, Operation]) -> Operation | None:
    """The op whose rounding such a difference shows. A rounding of both terms cancels, so only a rounding of `term` alone counts."""
    other = next((value for value in operation.inputs if value is not term), term)
    if before_copies(term) is before_copies(other):
        return error_source(term, apart=True)
    cause = error_source(term, known)
    common = cause is not None and other.maker is not None and cause.number <= other.maker.number
    return error_source(term, since=other) if common else cause


def worst_term(operation: Operation) -> Value:
    """The term of a sum with the largest absolute error."""
    return max(operation.inputs, key=absolute_error)


def _carrier(operation: Operation, made: Value, *, apart: bool) -> Value | None:
    """The input that carries most of the error of the result `made`. None for a random draw, which takes only the shape of its input.
    If elements are subtracted from each other (`apart`), an error that a sum adds to many of them cancels: those with fewer elements do not count."""
    if operation.base in ops.DRAWN:
        return None
    given = computed_from(operation, made)
    if apart and operation.base in ops.SUMS:
        given = tuple(each for each in given if elements(each) >= elements(operation.outputs[0]))
    source = max(given, key=absolute_error if operation.base in ops.SUMS | ops.MOVING else lambda each: each.drift, default=None)
    return source if source is not None and source.drift else None


def _made_itself(operation: Operation, value: Value, source: Value) -> bool:
    """Whether an op made most of a value's error itself, and not `source`, the input that carries most. The first condition that holds decides."""
    if operation.base in ops.MOVING | ops.CHOSEN and (not value.low or only_moved(operation, value)):
        return False  # nor does the smallest of n numbers change by more than the number that changes most
    summed, stored = operation.base in ops.SUMS, storage_error(value) >= MADE_BY_OP * value.drift
    if operation.base in ops.SCALING and len(operation.inputs) == 1 and elements(source) > elements(value):
        return stored  # a part of the input times a number: more than one rounding is the part's error
    if operation.base in ops.DECOMPOSED and any((made.local or 0.0) >= MADE_BY_OP * made.drift > 0 for made in operation.outputs):
        return True  # all results of a decomposition have one error, which shows in those that are not well determined
    if operation.base in ops.REDUCTIONS and not summed and stored:
        return True  # errors of n terms are independent, so the relative error of the sum is smaller than theirs
    if summed and value.drift > 2 * operation.drift_in and not shares_operand(operation):
        return True  # a cancellation
    carried, total = (absolute_error(source), absolute_error(value)) if summed else (source.drift, value.drift)
    if summed and elements(source) > elements(value):
        carried = min(carried, math.sqrt(1 - MADE_BY_OP**2) * total)  # the result is a part of the input, and the part's error is not known
    if operation.base in ops.ROOTS and not stored:
        return False  # it halves the relative error of each element, and only makes small elements count for more
    if operation.base == "mul":  # two numbers off by a and b make a product off by a + b + ab
        carried = max(carried, (math.prod(1 + each.drift for each in operation.inputs) - 1) / 2)
    if 2 * carried < total:  # an exponential in a wide format only amplifies what was rounded before it
        return value.low or (elements(source) <= elements(value) if summed else operation.base not in ops.EXPONENTIALS)
    cancelled = summed and chance.smallest_share_by_chance(elements(value)) * carried**2 > total**2  # the errors have one origin
    return stored and (cancelled or carried <= math.sqrt(1 - MADE_BY_OP**2) * total)


def before_copies(value: Value) -> Value:
    """The tensor that was moved or cast to become the value. A join of several tensors counts as a tensor itself, unless they are parts of one."""
    roots = before_joins(value)
    if len(roots) == 1:
        return roots.pop()
    while len(parts := _parts(value)) == 1:
        (value,) = parts
    return value


def before_joins(value: Value) -> set[Value]:
    """The tensors that were moved, cast, selected from or joined to become the value, among the nearest `NEARBY` ancestors."""
    if value.maker is None or value.maker.base not in ops.MOVING:
        return {value}
    roots, walk = set[Value](), Walk([value])
    for each in walk:
        parts = _parts(each) if len(walk.reached) < NEARBY else set()
        if not parts:
            roots.add(each)
        walk.follow(parts)
    return roots


def _parts(value: Value) -> set[Value]:
    """The tensors that an op moved to make the value. Constants beside them, such as the zero before a running sum, do not count."""
    maker = value.maker
    sources = set(computed_from(maker)) if maker is not None and maker.base in ops.MOVING else set()
    return {each for each in sources if each.maker is None or each.maker.base not in ops.CONSTANTS - ops.MOVING}


def ancestors(values: Iterable[Value], most: int = LINEAGE) -> set[Value]:
    """The values and all that they were computed from, the nearest `most` of them."""
    walk = Walk(values, most)
    for value in walk:
        walk.follow(value.maker.inputs if value.maker is not None else ())
    return walk.reached


def reads_only_from_line_of(operation: Operation, cause: Operation) -> bool:
    """Whether all that an op reads was computed from one result of the line of `cause`."""
    shared = set[Value].intersection(*(ancestors([value]) for value in operation.inputs))
    return any(value.maker is not None and value.maker.line == cause.line for value in shared)


def _made_of(value: Value, other: Value) -> bool:
    """Whether `value` was made from `other` by adding or cutting. Scaling counts only with a cut, as in a remainder x - b * round(x / b)."""
    walk, ways = Walk([value], NEARBY), {value: (False, False)}
    for made in walk:
        maker, (scaled, cut) = made.maker, ways[made]
        if maker is None or maker.base not in ADDING | ops.SCALING:
            continue
        scaled, cut = scaled or maker.base in ops.SCALING, cut or maker.base in ops.CUTS
        for source in maker.inputs:
            if (source is other or before_copies(source) is other) and (cut or not scaled):
                return True
            ways.setdefault(source, (scaled, cut))
        walk.follow(maker.inputs)
    return False


def given_low(value: Value) -> bool:
    """Whether a cast or one of torch's own modules rounded the value, and it was only moved since.
    Then the precision asks for the low value, and not the user's code. The same holds for a gradient, which autograd makes: under autocast it is
    always low. Projections, variance reductions and penalties subtract gradients.

    What the model computes and casts is not given: its code could have kept it wide. That holds whether the wide number had an error before
    (`_computed`) or was exact, as one made from whole numbers is (`stores_own`)."""
    source: Value | None = value
    while source is not None and source.maker is not None:
        maker = source.maker
        if maker.derived:
            return True
        if maker.base == "_to_copy" and not any(before.low for before in maker.inputs):
            return not (maker.parameter or maker.stores_own or any(map(_computed, maker.inputs)))
        if maker.base not in ops.MOVING:
            return maker.plain
        source = maker.drifting
    return True


def cast_from_given(value: Value) -> bool:
    """Whether a cast in the user's code made the value from a wide tensor that the block was given. It may have been moved since."""
    maker = value.maker
    while maker is not None and maker.base in ops.MOVING and maker.inputs and not (maker.base == "_to_copy" and not maker.inputs[-1].low):
        maker = maker.inputs[-1].maker
    if maker is None or maker.base != "_to_copy" or maker.inputs[-1].maker is not None:
        return False
    return not (maker.plain or maker.converts or maker.derived or maker.autocast or maker.parameter)


def _computed(value: Value) -> bool:
    """Whether the block has computed the value, so that its code decides to store it low."""
    return value.maker is not None and value.maker.base not in ops.MOVING | ops.CONSTANTS and not value.maker.plain


def summary_of_ancestors(value: Value) -> Past:
    """The results of all walks back from a value, kept before its ancestors are freed."""
    zeros = zero_origin(value) if value.zeros and value.maker is not None else None
    return Past(zeros, error_source(value), ops_on_the_way(value))


def levelling(value: Value | None) -> Operation | None:
    """The function that levels off, as the hyperbolic tangent and a softmax do, whose results a value holds, perhaps moved or negated. Whatever error
    its argument had, none but its own rounding puts a number onto its bound."""
    while value is not None and value.maker is not None and only_moved(value.maker, value):
        value = value.maker.drifting
    return value.maker if value is not None and value.maker is not None and value.maker.base in ops.BENDING | ops.SOFTMAXES else None
