"""Finds whole numbers (positions, counts, ids) that a low format rounds to others, and wrong casts to integers."""

from __future__ import annotations

import dataclasses
import math

from precheck import ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.provenance import elements
from precheck.analysis.propagation.walks import FAR, NEARBY, Walk
from precheck.analysis.rounding.exemptions import Exempting, added, divisor, drawn, float32_rounding, multiplies, scaled, unread
from precheck.observe.shadow.op_notes import Recut, Renumbered, Wrapped
from precheck.observe.shadow.operations import Operation, Value

INDEX_BITS = 32
"""The fewest bits of integers that are lengths, places and buckets. Those of 8 and 16 bits are pixels and codes, whose last digit is rounded."""
SEVERAL = Limit(2, "different whole numbers")
"""The fewest whole numbers that an op rounds to others. One alone may be a constant, such as a mask's."""
FRACTIONAL = Limit(2.0**-4, "magnitude times unit roundoff")
"""Numbers whose root mean square is smaller have at least four bits behind the binary point in their format."""
AMOUNTS = Limit(5, "elements")
"""The fewest elements that a cast turns into other integers. Fewer are chance."""
EXPLAINED = Limit(8.0, "times")
"""The largest ratio of integers that differ to those that one rounding explains. A number of size m crosses a whole number with a probability of at
most m u, and after eight ops there are eight roundings."""

UNRESOLVED = Limit(0.25, "share of the integers")
"""The smallest share of whole numbers that must differ, if `round` or `floor` made them wide of numbers that were stored low. A number m is off by up
to m u, and crosses a whole number with that probability. From a quarter on the format does not tell one place from the next. With a smaller
share the numbers are places between which a program may interpolate, and those beside a bound are as near to one as to the other."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class RoundedWholes(Fact):
    """Whole numbers that an op rounds to others, since they are too large for the format."""

    value: Value


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class MadeInteger(Fact):
    """Numbers that become other integers by a cast than in the reference. The op that rounded them before the cast is blamed.

    Whole numbers were rounded to others (`Renumbered`), numbers overflow the integer type (`Wrapped`), or fractions were computed from data alone
    (`Recut`).
    """

    changes: Renumbered | Wrapped | Recut
    converted: Operation
    dtype: str


def fact_on_rounded_wholes(operation: Operation, value: Value) -> RoundedWholes | None:
    """The fact that this op rounds whole numbers to others. Sums of products of integers do not count: they are amounts, which may be rounded."""
    if operation.amounts or value.wholes_moved < SEVERAL or operation.phase == "backward":
        return None
    if not operation.drift_in < value.drift or causes.only_moved(operation, value):
        return None
    return RoundedWholes(rule="integer-rounding", operation=operation, measured=value.peak, limit=1 / value.roundoff, value=value)


def exemptions_for(operation: Operation) -> list[Exempting]:
    converted = [unread] if operation.converts else []
    measures = [scaled] if multiplies(operation) or operation.base == "_to_copy" else []
    return [drawn, float32_rounding, added, divisor, *converted, *measures]


def renumbered_by(operation: Operation) -> Operation | None:
    """The op that turned whole numbers into others, of which only remainders were taken since, which are exact. The numbers that were put beside them
    may have larger errors."""
    walk = Walk(operation.inputs, FAR)
    for value in walk:
        if value.maker is not None and value.wholes_moved and not causes.only_moved(value.maker, value):
            return value.maker
        walk.follow(value.maker.inputs if value.maker is not None and value.maker.base in ops.MOVING | ops.REMAINDERS else ())
    return None


def facts_on_casts_to_integers(operation: Operation, cause: Operation | None) -> list[MadeInteger]:
    """The facts about a cast to integers. `cause`: the op that made the error of the numbers."""
    if operation.wrapped is not None:
        return [_made_integer(operation, operation.wrapped, cause or operation, abs(operation.wrapped.became), abs(operation.wrapped.end))]
    return [] if operation.renumbered is None else facts_on_renumbered(operation, operation.renumbered, cause)


def _made_integer(converted: Operation, changes: Renumbered | Wrapped | Recut, cause: Operation, measured: float, limit: float) -> MadeInteger:
    dtype = next((value.dtype for value in cause.outputs if value.low), "a low format")
    return MadeInteger(
        rule="integer-rounding", operation=cause, measured=measured, limit=limit, changes=changes, converted=converted, dtype=dtype
    )


def facts_on_integers_of_data(operation: Operation, cause: Operation | None, readers: Readers) -> list[MadeInteger]:
    """Lengths, buckets and places that are computed from data alone, as share × frames, and become other integers than in the reference.

    Integers made from a network's outputs or from random draws may differ, since their inputs are rounded in any case. Data are exact inputs. If only
    the user's own arithmetic has rounded them, each integer that differs is wrong. The same holds for data that a measurement has converted to the
    precision's format: there the integers are compared with what float32 makes of the converted data. An amount, which goes back to floats, is an
    exception: a rounding may change single integers, so more must differ than a few roundings explain (`_explained`). So are bins, but not those of
    places. Of numbers that were widened before `round` or `floor` a quarter must differ (`UNRESOLVED`).
    """
    changes = operation.recut
    if changes is None or not _of_data(operation):
        changes = operation.recut_in_call
        if changes is None or not _of_data(operation, converted=True):
            return []
        cause = _rounded_by(operation)
    if cause is None or not attribution.written(cause) or not cause.outputs:
        return []
    if operation.outputs and not operation.outputs[0].low and changes.count < UNRESOLVED * changes.total:
        return []
    converted = operation if not operation.outputs else _integer(operation.outputs[0], readers)
    if converted is None:
        return []
    either = converted.used_as == "amount" or operation.base in ops.PLACES  # a number near a bound may be in either bin
    if either and _explained(changes, max(value.roundoff for value in operation.inputs)):
        return []
    if converted.left_out is not None and changes.places <= converted.left_out:
        return []  # a `where` discards them all
    return [_made_integer(converted, changes, cause, float(changes.count), 0.0)]


def _explained(changes: Recut, roundoff: float) -> bool:
    """Whether a few roundings of each amount explain how many become other integers."""
    return changes.count < AMOUNTS or changes.count <= EXPLAINED * roundoff * changes.size * changes.total


def _rounded_by(operation: Operation) -> Operation | None:
    """The op of the user's that last stored low what this one reads."""
    walk = Walk(operation.inputs, NEARBY)
    for value in walk:
        maker = value.maker
        if maker is None or not attribution.written(maker):
            continue
        if value.low and maker.base not in ops.MOVING:
            return maker
        walk.follow(maker.inputs)
    return None


def _of_data(operation: Operation, *, converted: bool = False) -> bool:
    """Whether the inputs were computed from data alone: from no weight, no random draw and no converted tensor. `converted`: data that a
    measurement has converted to the precision's format count, too."""
    if operation.parameter or operation.drawn:
        return False
    walk = Walk(operation.inputs, FAR)
    for value in walk:
        maker = value.maker
        if value.past is not None:
            return False
        if maker is None or (converted and maker.converts == "given"):
            continue
        if maker.parameter or maker.converts or maker.plain or maker.opaque or maker.drawn or maker.base in ops.DRAWN:
            return False
        walk.follow(maker.inputs)
    return walk.whole


def _integer(value: Value, readers: Readers) -> Operation | None:
    """The cast that makes integers of at least `INDEX_BITS` from a value. Between them it may only be added to, scaled, cut or moved."""
    walk = Walk([value], NEARBY)
    for _, reader in walk.with_readers(readers):
        if reader.bits >= INDEX_BITS:
            return reader
        walk.follow(reader.outputs if reader.base in ops.KEEPING else ())
    return None


def facts_on_renumbered(operation: Operation, changes: Renumbered, cause: Operation | None) -> list[MadeInteger]:
    """Ids, positions or counts that were rounded by `cause` and then cast to integers, which differ from the right ones.

    A single number is enough, since the cast to integers says that these are whole numbers. They must have been exact before `cause` stored them, or
    be sums of small exact numbers, as counts are. Numbers that were computed low do not count: there all large numbers are whole.
    """
    if cause is None or not (_counted(cause) or (cause.base in ops.CONSTANTS and _only_stores(cause))):
        return []
    return [_made_integer(operation, changes, cause, changes.peak, changes.reach)]


def _only_stores(cause: Operation) -> bool:
    """Whether an op that moves or casts numbers makes most of the error of its result itself: it stores wide numbers, or integers beside floats, as a
    join of both does. What was off before is off by as much after it."""
    made, off = cause.outputs[0], math.hypot(*(source.drift * source.norm for source in cause.inputs))
    return off <= causes.MADE_BY_OP * made.drift * made.norm


def _counted(cause: Operation) -> bool:
    """Whether the op adds up exact numbers that are small enough for their format to hold fractions of them."""
    small = all(source.norm <= FRACTIONAL / (source.roundoff or 1.0) * math.sqrt(elements(source)) for source in cause.inputs)
    return cause.base in ops.REDUCTIONS and small and not any(source.drift for source in cause.inputs)
