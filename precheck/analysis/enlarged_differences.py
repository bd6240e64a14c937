"""Differences whose own gain does not show what is lost: of terms that were computed from low numbers, or that an earlier difference made.

A difference in float32 is exact, so its error is that of its terms. Wide ops may lie between the last low number and the term, such as a loss, a norm
or a sum with wide coordinates. The precision then explains the error of each term, and not that they were subtracted: a function at two points near
each other, or a result beside what it should be, is to be computed wide.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis import attribution, causes
from precheck.analysis.attribution import Attribution
from precheck.analysis.differences import RESULTS
from precheck.analysis.facts import Readers
from precheck.analysis.function_errors import owns
from precheck.analysis.limit import Limit
from precheck.analysis.output_impact import GARBAGE, NEAR, exponentials
from precheck.analysis.provenance import MOVING, determined, elements
from precheck.analysis.walks import Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

DIGITS = Limit(
    8.0, "times",
    "Each of two differences in a row counts from three bits. Both together lose six, and `rounding.PLAIN` is five.",
)  # fmt: skip


ENLARGED = Limit(
    32.0, "times",
    "A difference is enlarged by as much as it may lose: `rounding.PLAIN`. Weights of losses and standard deviations are seldom so far from one.",
)  # fmt: skip


SCALING = ops.SCALING


def gained(operation: Operation, value: Value) -> float:
    """The factor by which an op amplifies an error."""
    return value.drift / max(operation.drift_in, value.rounded)


def gained_before(operation: Operation, value: Value, known: dict[Value, Operation]) -> float:
    """The gain of an earlier difference that made the error of this one's term, by which its own is multiplied. 1 if there is none."""
    if value.dead < GARBAGE or not operation.inputs:
        return 1.0
    first = causes.error_source(max(operation.inputs, key=causes.absolute), known)
    if first is None or first is operation or first.base not in ops.SUMS or not attribution.written(first):
        return 1.0
    before = gained(first, first.outputs[0])
    return before if before >= DIGITS else 1.0


def of_computed_terms(operation: Operation, value: Value) -> bool:
    """Whether a wide difference has no correct digit, and no term is a number that was only stored low."""
    if operation.base not in ops.SUMS or value.low or value.dead < GARBAGE or not determined(operation, value):
        return False
    return bool(operation.inputs) and not any(source.kept_low or source.low for source in operation.inputs)


def lost_at(operation: Operation, observation: Observation, readers: Readers) -> Operation | None:
    """The op to blame for such a difference. None if the precision means it.

    If both terms have errors, only a quotient of the difference and a small step asks for its digits, and the difference is named. (A policy's ratio
    is the exponential of such a difference, and is right.) If one term is exact, the other is a result beside what it should be. A line of the user's
    made most of its error, or a function did, and there the line with most. What torch's own modules round in a network is what the precision means.
    """
    value = operation.outputs[0]
    if sum(source.drift > 0 for source in operation.inputs) > 1:
        return operation if _enlarged(value, readers) else None
    if elements(value) < RESULTS or exponentials(value, readers):
        return None
    made = Attribution(max(operation.inputs, key=causes.absolute), observation.operations)
    cause = made.cause(attribution.written)
    return cause if owns(cause, made, observation.functions) else None


def _enlarged(value: Value, readers: Readers) -> bool:
    """Whether the program multiplies a difference until it is as large beside its terms as before the subtraction: a difference quotient."""
    walk = Walk([value], NEAR)
    for held in walk:
        made = [(reader, result) for reader in readers.get(held, ()) if reader.base in MOVING | SCALING for result in reader.outputs]
        if any(reader.base in SCALING and result.norm >= ENLARGED * value.norm for reader, result in made):
            return True
        walk.follow(result for _, result in made)
    return False
