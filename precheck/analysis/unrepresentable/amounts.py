"""Distinguishes whole numbers that are amounts, of which one rounding is what their format means, from those that stand for themselves."""

from __future__ import annotations

import math

from precheck import ops
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import absolute_error, consumers, elements, rms
from precheck.analysis.propagation.walks import FAR, Walk
from precheck.observe.shadow.operations import Operation, Value

UNITS = (ops.SCALING | ops.SUMS | ops.MOVING | ops.CASTS | ops.REDUCTIONS) - ops.NORMS
"""Ops whose results are multiples or sums of their operands."""


def harmless_in_results(value: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether all that is made from products that happen to be whole is right up to a few roundings. The user may also get a product of two
    tensors itself, such as areas."""
    reading = consumers(value, readers)
    if not reading:
        maker = value.maker
        return maker is not None and maker.base in ops.MULTIPLYING and [elements(factor) > 1 for factor in maker.inputs] == [True, True]
    return all(reader.outputs and not _amplifies(reader, value) for reader in reading)


def are_amounts(value: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether whole numbers are amounts, so that one rounding of them is what their format means.

    A number that stands for itself (a place, an id) is wrong if it differs by one. Such numbers follow each other in equal steps, and the format
    makes neighbours one, or the program compares them, subtracts one from another, takes the sine of one, or gives them to its user. All that is
    made from amounts is right up to a few roundings. It is followed as long as the numbers are only multiples or sums of amounts, and the amounts
    have the largest error. A comparison of products tells nothing if the other factor is off by as much,
    and none of whole quotients does: these are amounts too.
    """
    walk, mixed = Walk([value], FAR), set[Value]()
    for held in walk:
        reading = [reader for reader in consumers(held, readers) if reader.phase == "forward"]
        if not reading and held.wholes_moved:
            return False
        for reader in reading:
            decides = not reader.outputs or reader.base in ops.CHOOSERS
            if (decides and held not in mixed) or _amplifies(reader, value) or _leaves_rest(reader, held, value):
                return False
            others = [other for other in reader.inputs if other is not held]
            if reader.base in ops.SUMS and any(other.wholes_moved for other in others):
                return False
            cut = reader.base in ops.CUTS & ops.STEPS
            if cut or held in mixed or (reader.base in ops.SCALING and any(2 * other.drift >= held.drift for other in others)):
                mixed.update(reader.outputs)
            outdone = reader.base in ops.SUMS and any(2 * absolute_error(other) >= absolute_error(held) for other in others)
            if cut or (reader.base in UNITS and not outdone):
                walk.follow(reader.outputs)
    return walk.whole and not value.enumerates


def _amplifies(reader: Operation, value: Value) -> bool:
    return any(made.drift >= ROUNDINGS * value.roundoff for made in reader.outputs)


def _leaves_rest(reader: Operation, held: Value, value: Value) -> bool:
    """Whether a remainder of quotients of `value` is wrong. A quotient without its remainder is off by one at least if it differs. The shadow takes
    it over from the run, so that the remainder shows no error."""
    flips = held.maker.flips if reader.base in ops.REMAINDERS and held.maker is not None else None
    off = math.sqrt(flips.changed / flips.total) if flips is not None and flips.total else 0.0
    return any(off >= ROUNDINGS * value.roundoff * rms(rest) > 0 for rest in reader.outputs)
