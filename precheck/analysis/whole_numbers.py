"""Whole numbers that a low format cannot hold: positions, counts, ids."""

from __future__ import annotations

import dataclasses
import math

from precheck import ops
from precheck.analysis import attribution, causes
from precheck.analysis.excuses import SCALED, Excuse, added, drawn, scaled, unfelt, unread
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import CONSTANTS, DRAWN, GUARDS, MOVING, REDUCTIONS, SUMS, elements
from precheck.observe.shadow.op_notes import Recut, Renumbered, Wrapped
from precheck.observe.shadow.operations import Operation, Value

KEEPING = SUMS | MOVING | GUARDS | ops.SCALING | ops.CUTS
"""Ops after which numbers are numbers of the same things."""
INDEX_BITS = 32
"""Of integers that are lengths, places and buckets. Those of 8 and 16 bits are pixels and codes, whose last digit is a rounding."""
SEVERAL = Limit(
    2, "different whole numbers", "that an op rounds to others, from which they count something; a lone one is a constant, such as a mask's"
)
FRACTIONAL = Limit(
    2.0**-4, "magnitude times unit roundoff",
    "of numbers, root mean squares, up to which their format has four bits behind the point",
)  # fmt: skip
AMOUNTS = Limit(5, "amounts", "that a cast makes other integers, at least: fewer are chance")
EXPLAINED = Limit(
    8.0, "times",
    """as many amounts become other integers as one rounding makes so. A number of size m has crossed a whole number with a chance of m u at most, and
    eight ops have rounded eight times.""",
)  # fmt: skip


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Moved(Fact):
    """Whole numbers beyond the reach of the format that an op rounds to others."""

    value: Value


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class MadeInteger(Fact):
    """Whole numbers that were rounded to others and are integers in the end. The rounding op is blamed."""

    seen: Renumbered
    converted: Operation
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Passed(Fact):
    """Numbers that a cast to integers takes beyond the end of their type. The op that rounded them is blamed."""

    seen: Wrapped
    converted: Operation
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Cut(Fact):
    """Numbers of data, no whole ones, that become other integers than in the reference. The op that rounded them is blamed."""

    seen: Recut
    converted: Operation
    dtype: str


def moved(operation: Operation, value: Value) -> Moved | None:
    """Whole numbers that this op rounds to others. Sums of products of integers are amounts: one rounding of them is one rounding."""
    if operation.amounts or value.wholes_moved < SEVERAL or operation.phase == "backward":
        return None
    if not operation.drift_in < value.drift or causes.only_moved(operation, value):
        return None
    return Moved(mechanism="integer-rounding", operation=operation, measured=value.peak, limit=1 / value.roundoff, value=value)


def excuses(operation: Operation) -> list[Excuse]:
    """What excuses them."""
    converted = [unread] if operation.converts else []
    measures = [scaled] if operation.base in SCALED or operation.base == "_to_copy" else []
    return [drawn, unfelt, added, *converted, *measures]


def integers(operation: Operation, cause: Operation | None) -> list[Passed] | list[MadeInteger]:
    """What a cast to integers makes of numbers whose error is from `cause`."""
    if operation.wrapped is not None:
        return [_passed(operation, operation.wrapped, cause or operation)]
    return [] if operation.renumbered is None else renumbered(operation, operation.renumbered, cause)


def _passed(operation: Operation, seen: Wrapped, cause: Operation) -> Passed:
    measured, limit, dtype = abs(seen.became), abs(seen.end), _low(cause)
    return Passed(mechanism="integer-rounding", operation=cause, measured=measured, limit=limit, seen=seen, converted=operation, dtype=dtype)


def cut(operation: Operation, cause: Operation | None, readers: Readers) -> list[Cut]:
    """Lengths, buckets and places that data come to, as share × frames: in exact arithmetic they are the integers that the program means.

    What a network computes is rounded by whoever computes it, and so are draws, so that their integers differ now and then. But data
    are given, and if nothing but the user's own arithmetic has rounded them, each integer that differs is wrong, unless it is an amount: what
    goes back to floats is off by a rounding, as any number is. Of amounts that a rounding would leave what they are, too many must differ.
    """
    if operation.recut is None or cause is None or not attribution.written(cause) or not cause.outputs or not _of_data(operation):
        return []
    converted = operation if not operation.outputs else _integer(operation.outputs[0], readers)
    if converted is None or (converted.taken == "amount" and _explained(operation.recut, operation.inputs[0].roundoff)):
        return []
    seen = operation.recut
    return [
        Cut(
            mechanism="integer-rounding", operation=cause, measured=float(seen.count), limit=0.0, seen=seen, converted=converted, dtype=_low(cause)
        )
    ]


def _explained(seen: Recut, roundoff: float) -> bool:
    """Whether as many amounts become other integers where each has been rounded a few times."""
    return seen.count < AMOUNTS or seen.count <= EXPLAINED * roundoff * seen.size * seen.total


def _of_data(operation: Operation) -> bool:
    """Whether no weight, no draw and no conversion is among what its inputs were made of."""
    waiting, seen = list(operation.inputs), set(operation.inputs)
    if operation.parameter or operation.drawn:
        return False
    while waiting and len(seen) < causes.BEHIND:
        value = waiting.pop()
        maker = value.maker
        if value.past is not None:
            return False
        if maker is None:
            continue
        if maker.parameter or maker.converts or maker.plain or maker.opaque or maker.drawn or maker.base in DRAWN:
            return False
        fresh = [source for source in maker.inputs if source not in seen]
        seen.update(fresh)
        waiting += fresh
    return not waiting


def _integer(value: Value, readers: Readers) -> Operation | None:
    """The cast that makes lengths or places of whole numbers, which have been added to, scaled, cut or moved about at most."""
    waiting, seen = [value], {value}
    while waiting and len(seen) < causes.BEHIND:
        for reader in readers.get(waiting.pop(0), ()):
            if reader.bits >= INDEX_BITS:
                return reader
            fresh = [made for made in reader.outputs if made not in seen] if reader.base in KEEPING else []
            seen.update(fresh)
            waiting += fresh
    return None


def _low(cause: Operation) -> str:
    return next((value.dtype for value in cause.outputs if value.low), "a low format")


def renumbered(operation: Operation, seen: Renumbered, cause: Operation | None) -> list[MadeInteger]:
    """Numbers of something (ids, positions, counts) that are integers in the end, and others than they were. `cause` rounded them.

    One is enough, whatever other columns of the tensor hold: the cast to integers says that these are whole numbers. They were wide when they were
    stored, or were added up from small numbers without an error, as counts are. Of what is computed in the format itself, all large numbers are
    whole.
    """
    if cause is None or not (_counted(cause) or (cause.base in CONSTANTS and not any(source.low for source in cause.inputs))):
        return []
    return [
        MadeInteger(
            mechanism="integer-rounding", operation=cause, measured=seen.peak, limit=seen.reach, seen=seen, converted=operation, dtype=_low(cause)
        )
    ]


def _counted(cause: Operation) -> bool:
    """Whether it adds up numbers that are exact, and small enough to have digits behind the point if they were no whole numbers."""
    small = all(source.norm <= FRACTIONAL / (source.roundoff or 1.0) * math.sqrt(elements(source)) for source in cause.inputs)
    return cause.base in REDUCTIONS and small and not any(source.drift for source in cause.inputs)
