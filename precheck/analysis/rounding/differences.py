"""Finds differences of nearly equal numbers, and those that lose more digits than their own amplification shows: of low terms, after another
difference, or in a part.

A difference in float32 is exact, so its error is that of its terms. Between a low number and the term there may be wide ops, such as a loss, a norm
or a sum with wide coordinates. The precision explains the error of each term. It does not explain that the terms are subtracted: a function at two
neighbouring points, or a result and its target, should be computed wide.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from precheck import ops
from precheck.analysis.chance import CHANCE
from precheck.analysis.decisions.branches import WRONG_NUMBER
from precheck.analysis.facts import Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.propagation.causes import RESULTS
from precheck.analysis.propagation.output_impact import GARBAGE, exponentials
from precheck.analysis.propagation.provenance import absolute_error, determined, elements, rms
from precheck.analysis.propagation.walks import FAR, NEARBY, Walk
from precheck.analysis.rounding.function_errors import owns
from precheck.analysis.rounding.function_limits import MADE_BY_FUNCTION, OWNED
from precheck.analysis.rounding.remainders import stored_low
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import Function

FEW_TERMS = Limit(4, "terms")
"""A sum of so few terms counts as a difference: the coordinates of a point, a quaternion or a plane."""
DIGITS = Limit(8.0, "times")
"""Each of two differences in a row counts from three bits. Both together lose six, one more than `LOSES_FIVE_BITS`."""
LOSES_FIVE_BITS = Limit(32.0, "times")
"""An op or a subtraction with this amplification loses five bits. Healthy ones reach 16.2, at a scalar. Weights of losses and standard deviations
seldom make a difference so many times larger."""
ALIKE = Limit(0.25, "share of the elements")
"""Where errors are half as large as the numbers, half of the elements have no correct digit (`GARBAGE`), if both are normally distributed. Of numbers
of one size, such as the steps of a ramp, 32 % have none."""
RECURRENT = Limit(8, "iterations")
"""If an op works on its own results so often, the loop makes the error. With fewer iterations the depth of a network may make it: in a deep network
with batch norm, before training, one correct rounding for each op makes 0.38 of the result, and one for each module 0.41."""
WAVES = frozenset({"cos", "sin"})
"""Functions that swing between minus one and one. Their error is at most that of their argument, whatever they are themselves."""


def reduction_is_difference(operation: Operation, value: Value) -> bool:
    """Whether a reduction is a difference, and not a sum that happens to be small.

    Either it adds up few terms for each of many results, such as a product of coordinates, written out or as a matrix product: by chance some results
    are small beside their terms, but not all. Or one rounding has grown a million times by then. Numbers cancel to a g-th of their size, in one sum
    or in several in a row, with a chance of 1/g.
    """
    few = elements(value) >= RESULTS and 1 < _terms(operation, value) <= FEW_TERMS
    return few or CHANCE * value.drift >= value.rounded > 0


def _terms(operation: Operation, value: Value) -> float:
    """How many terms each result adds up: in a product of matrices as many as a row of the first one has elements."""
    if operation.base in ops.MATRIX_PRODUCTS:
        shape = operation.inputs[ops.MATRIX_PRODUCTS[operation.base][0]].shape
        return shape[-1] if shape else 1
    if operation.base in ops.PRODUCTS:
        return math.inf  # of a vector or a window, which is not known here
    return max(map(elements, operation.inputs), default=0) / max(1, elements(value))


def amplification(operation: Operation, value: Value) -> float:
    """The factor by which an op makes the relative error of its inputs larger. A few numbers of a wave may lie near its zeros, as the cosine of a
    quarter turn does, and what they are part of is as large as the wave: their error is measured beside one."""
    few = operation.base in WAVES and elements(value) < RESULTS
    return value.drift * (rms(value) if few else 1.0) / max(operation.drift_in, value.rounded)


def amplified_in_all(operation: Operation, value: Value, known: dict[Value, Operation]) -> float:
    """The factor by which a difference of low terms amplifies their error, together with the differences before it. All amplifications
    multiply. 0 if the op is no such difference."""
    few = operation.base in ops.REDUCTIONS and reduction_is_difference(operation, value) and determined(value)
    # a loss that subtracts is small near zero as it should be; but what was cast just before could have been subtracted before the cast
    sums = operation.base in ops.SUMS or (operation.base in ops.ADDED_INTO and len(operation.inputs) > 1 and not _summed_low(value))
    subtracts = sums or few or (operation.base in ops.DIFFERENCES and all(map(causes.cast_from_given, operation.inputs)))
    if not subtracts or not stored_low(operation):
        return 0.0
    gain = amplification(operation, value)
    return gain * _amplified_before(operation, value, known) if DIGITS <= gain < LOSES_FIVE_BITS else gain


def _amplified_before(operation: Operation, value: Value, known: dict[Value, Operation]) -> float:
    """The amplification by earlier differences that made the error of a term. 1 if there are none."""
    term = causes.worst_term(operation)
    first = difference_before(term, known) if value.dead >= GARBAGE else None
    if first is None:
        return _times_larger_before(term)
    before = amplification(first, first.outputs[0])
    return before if before >= DIGITS else 1.0


def difference_before(term: Value, known: dict[Value, Operation]) -> Operation | None:
    """The difference in the user's code that made the error of a term. None if another op made it."""
    first = causes.error_source(term, known)
    return first if first is not None and first.base in ops.SUMS and attribution.written(first) else None


def difference_of_parts(term: Value) -> tuple[Operation | None, Operation | None]:
    """The difference of two parts of one tensor, such as a running sum, that a term is a multiple of, and the user's op that made that tensor."""
    value, passed = term, 0
    while value.maker is not None and value.maker.inputs and value.maker.base in ops.SCALING | ops.MOVING and passed < NEARBY:
        value, passed = max(value.maker.inputs, key=attribution.drift), passed + 1
    first = value.maker
    if first is None or first.base not in ops.SUMS or len(first.inputs) != 2:
        return None, None
    one, other = map(causes.before_copies, first.inputs)
    return (first, one.maker) if one is other and one.maker is not None and attribution.written(one.maker) else (None, None)


def _summed_low(value: Value) -> bool:
    """Whether a kernel that added up many terms made most of an error itself, on the inputs that it got."""
    return (value.local or 0.0) >= causes.MADE_BY_OP * value.drift


class Storing(NamedTuple):
    """The op that stored a number low."""

    operation: Operation | None
    most: bool  # whether its line or function made most of the number's error
    spared: bool  # whether most of that would be gone if its line stored the number wide


def storing(cause: Operation | None, made: Attribution, functions: Mapping[str, Function]) -> Storing:
    """What the op that stored a number made of the number's error."""
    return Storing(cause, owns(cause, made, functions), cause is not None and _spared(cause, made))


def _spared(stored: Operation, made: Attribution) -> bool:
    """Whether at least half of the square of an error would be gone if the line of `stored` kept its result wide: the share of that line, and those
    of the ops made wide by it. (A module of torch's keeps its parameters' format.) One of four constants that are multiplied has a third or less."""
    reached, gone = set[Value](), 0.0
    for each in sorted(made.through, key=attribution.number):
        if each.line == stored.line or (not each.plain and any(value in reached for value in each.inputs)):
            reached.update(each.outputs)
            gone += made.shares.get(each, 0.0)
    return gone >= OWNED


def of_shared_error(operation: Operation, term: Value) -> bool:
    """Whether the terms of a difference have an error in common, which cancels as they do: the result has less than half of the error of its worst
    term. What is left is another error, such as that of storing the terms. Independent errors never cancel: their squares add up."""
    return absolute_error(operation.outputs[0]) < causes.MADE_BY_OP * absolute_error(term)


def only_cast(stored: Operation, operation: Operation, readers: Readers) -> bool:
    """Whether the user casts, on another line than the difference's, what the block has computed wide, and only differences read the result. After
    them the cast would lose nothing."""
    cast = stored.base in ops.CASTS and causes.casts_wide(stored) and any(source.maker for source in stored.inputs) and not stored.autocast
    return cast and stored.blamed != operation.blamed and all(reader.base in ops.SUMS for reader in readers.get(stored.outputs[0], ()))


def stored_elsewhere(operation: Operation, functions: Mapping[str, Function]) -> Operation | None:
    """The op of another function that stored a term of a difference, if half of the error that is left is this rounding. None otherwise. A rounding
    that the other term has too is not left: one that an op of the same line made in a result of the same size, with the same error."""
    for term in sorted(operation.inputs, key=absolute_error, reverse=True):
        stored, others = causes.before_copies(term).maker, causes.ancestors(each for each in operation.inputs if each is not term)
        if stored is not None and not any(_same_rounding(stored, each) for each in others):
            left = causes.storage_error(term) * rms(term) >= causes.MADE_BY_OP * absolute_error(operation.outputs[0])
            apart = not attribution.same_function(stored, operation, functions)
            return stored if left and apart and attribution.written(stored) else None
    return None


def _same_rounding(stored: Operation, value: Value) -> bool:
    """Whether a value is what an op has made, or what its line has made of the same numbers once more."""
    made, maker = stored.outputs[0], value.maker
    again = maker is not None and (maker.line, maker.name) == (stored.line, stored.name)
    equal = functools.partial(math.isclose, rel_tol=attribution.UNCHANGED)
    return value is made or (again and equal(value.norm, made.norm) and equal(value.drift, made.drift))


def subtracts_loop_state(operation: Operation, stored: Operation, term: Value) -> bool:
    """Whether a loop's state is subtracted from a number with less than half of its error, and the turns of the loop made the error of the state.

    Only the rounding with which a term is stored could be spared at the difference. n turns make √n roundings, or n if they go one way. These are in
    the state, whatever is subtracted from it: of two or more at least half is the loop's."""
    others = (source for source in operation.inputs if source is not term)
    apart = all(absolute_error(other) < causes.MADE_BY_OP * absolute_error(term) for other in others)
    return apart and term.drift >= 2 * term.rounded > 0 and _times_on_the_way(stored, term) >= RECURRENT


def _times_on_the_way(stored: Operation, term: Value) -> int:
    """How often the line of an op made the largest error on the way back from a term, up to `RECURRENT`. In sums absolute errors add up."""
    turns, value = 0, term
    for _ in range(FAR):
        maker = value.maker
        if maker is None or not maker.inputs or turns >= RECURRENT:
            break
        turns += (maker.line, maker.name) == (stored.line, stored.name)
        value = causes.worst_term(maker) if maker.base in ops.SUMS else max(maker.inputs, key=attribution.drift)
    return turns


def _times_larger_before(term: Value) -> float:
    """How many times larger than a term it was before sums took parts of it away. The walk back ends where a sum has less than half of its error.

    A sum of sums is one sum. What is taken off step by step loses as many digits as if it were taken off at once.
    """
    largest, made = term, [term]
    while len(made) < NEARBY and made[-1].maker is not None and made[-1].maker.base in ops.SUMS | ops.MOVING:
        before = max(causes.computed_from(made[-1].maker), key=absolute_error, default=None)
        if before is None or before in made or before.shape != term.shape or absolute_error(before) < causes.MADE_BY_OP * absolute_error(term):
            break
        made.append(before)
        largest = max(largest, before, key=lambda each: each.norm)
    return largest.norm / term.norm if term.norm else 1.0


def sum_picked_from(operation: Operation, value: Value, readers: Readers) -> tuple[Operation, float] | None:
    """The sum from whose results an op picks small ones that have lost their digits, and how many times larger their error is. None if it picks no
    such part.

    The error of a tensor is measured as a whole, and by chance few of its numbers are small. n numbers are all 1/g of the others by a chance of g⁻ⁿ
    at most. Numbers that are picked for their size are small by choice, so they count only if no digit is left.
    """
    source, off = operation.drifting, value.drift if operation.base in ops.MOVING else operation.part_drift or 0.0
    if source is None or not 0.0 < max(source.drift, source.rounded) < off < math.inf:
        return None
    if not _no_digit(value) and not (operation.base in ops.CHOOSING_OR_FILLING and _by_place(source, readers)):
        return None
    gain, made = off / max(source.drift, source.rounded), causes.before_copies(source).maker
    small = gain >= LOSES_FIVE_BITS and elements(value) * math.log(gain) >= -math.log(CHANCE)
    return (made, gain) if small and made is not None and made.base in ops.SUMS else None


def _by_place(source: Value, readers: Readers) -> bool:
    """Whether a mask leaves numbers of a low sum for their places, and not for their sizes: nothing compares them, or what they are computed from or
    become. A wide difference of low terms is judged where no digit is left, masked or not."""
    maker = causes.before_copies(source).maker
    if maker is None or not all(each.low for each in (*maker.inputs, *maker.outputs)):
        return False
    after = Walk([source], NEARBY)
    for _, reader in after.with_readers(readers):
        after.follow(reader.outputs)
    read = (reader for each in causes.ancestors([source], NEARBY) | after.reached for reader in readers.get(each, ()))
    return not any(reader.base in ops.COMPARED or reader.packet in ops.EXTREMES for reader in read)


def _no_digit(value: Value) -> bool:
    """Whether a tensor has no correct digit: most elements have none, or all are off by more than half of their norm."""
    return value.dead >= GARBAGE or (value.dead >= ALIKE and value.drift > WRONG_NUMBER)


def wide_without_correct_digit(operation: Operation, value: Value) -> bool:
    """Whether a wide difference, or a product of matrices that cancels as much, has no correct digit. No term may be a number that was only stored
    low."""
    if operation.base not in ops.SUMS | ops.PRODUCTS or value.low or not _no_digit(value) or not determined(value):
        return False
    return bool(operation.inputs) and not any(source.kept_low or source.low for source in operation.inputs)


def op_that_lost_digits(operation: Operation, observation: Observation, readers: Readers) -> Operation | None:
    """The op to blame for such a difference. None if the precision explains the error.

    If two tensors have errors, a difference quotient needs the lost digits, and the difference is named. (A policy's ratio is the exponential of
    such a difference, and is right.) If the same roundings made both errors, as those of a number and its own trend, digits were lost where they were
    made. If one term is exact, the other is a result that is compared with its target. If both are parts of one tensor, its digits were lost when it
    was stored. Then the user's line that made most of the error is named, or the line with the largest share in the function that made most. What
    torch's own modules round is not blamed, and what the precision asks of a product is not, if both terms have an error.
    """
    value = operation.outputs[0]
    apart = sum(source.drift > 0 for source in operation.inputs) > 1 and not causes.shares_operand(operation)
    if apart and _enlarged(value, readers):
        return operation
    if elements(value) < RESULTS or exponentials(value, readers):
        return None
    terms = [Attribution(term, observation.operations) for term in (operation.inputs if apart else [causes.worst_term(operation)]) if term.drift]
    cause, changed = terms[0].to_change(observation.functions)
    if apart and (cause is None or cause.base in ops.PRODUCTS or not _of_one_origin(terms)):
        return None
    return changed if all(owns(cause, made, observation.functions) for made in terms) else None


def _of_one_origin(terms: list[Attribution]) -> bool:
    """Whether the same roundings made the errors of all terms, as of a number and its own trend."""
    common = set[Operation].intersection(*(set(made.shares) for made in terms))
    return all(sum(made.shares[each] for each in common) >= MADE_BY_FUNCTION for made in terms)


def _enlarged(value: Value, readers: Readers) -> bool:
    """Whether later products make a difference at least `LOSES_FIVE_BITS` times larger, as a difference quotient does."""
    walk = Walk([value], NEARBY)
    for _, reader in walk.with_readers(readers):
        if reader.base in ops.SCALING and any(result.norm >= LOSES_FIVE_BITS * value.norm for result in reader.outputs):
            return True
        walk.follow(reader.outputs if reader.base in ops.MOVING | ops.SCALING else ())
    return False
