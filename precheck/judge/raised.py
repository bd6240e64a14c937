"""What an exception that left the block may come of: a question that a zero answered otherwise, what torch would not store or mix."""

from __future__ import annotations

import math
from collections.abc import Iterator

from precheck import formats
from precheck.judge.events import Suspect, of_zero
from precheck.judge.lineage import placed
from precheck.observe.shadow.operations import Observation, Operation, Refused, Value
from precheck.observe.shadow.source import shortened

REFUSALS = frozenset({"ZeroDivisionError", "ValueError", "AssertionError", "FloatingPointError", "OverflowError"})
"""What Python code makes of a number that it has read and cannot use; other exceptions may have nothing to do with it."""


def behind(observation: Observation) -> list[Suspect]:
    """At most one: the last thing that the block asked or tried before it raised.

    Comparisons and reads make no floats, so those since the last op that did are what the code was deciding by when it raised. A
    comparison that saw a zero where the reference has a number, and came out otherwise, is what it raised for; else a read of one.
    """
    if not observation.raised or not observation.operations:
        return []
    last = observation.operations[-1]
    if last.refused is not None:
        return _unstorable(last, last.refused) or _mismatched(observation, last, last.refused)
    asked = list(_asked(observation))
    for operation, zero in asked:
        if operation.flips is not None and operation.flips.changed:
            return [of_zero(zero, f"{placed(operation)} came out otherwise, and the block raised {observation.raised}")]
    for operation, zero in asked:
        if operation.reads and observation.raised in REFUSALS:
            return [of_zero(zero, f"Python read it at {shortened(operation.blamed)}, and the block raised {observation.raised}")]
    return []


def _asked(observation: Observation) -> Iterator[tuple[Operation, Value]]:
    """What made no floats before the block raised, and the zeros that it saw; the latest first."""
    for operation in reversed(observation.operations):
        if operation.outputs:
            return
        zero = next((value for value in operation.inputs if value.zeros and value.maker is not None), None)
        if zero is not None:
            yield operation, zero


def _unstorable(operation: Operation, refused: Refused) -> list[Suspect]:
    """A Python number beyond the format that torch was to fill in: -1e20 for a mask, which float16 refuses."""
    greatest = formats.of_dtype(refused.dtype).max if refused.dtype else math.inf
    beyond = [scalar for scalar in operation.scalars if greatest < abs(scalar) < math.inf]
    if not beyond:
        return []
    text = f"{beyond[0]:.4g} is beyond the largest {refused.dtype}, {greatest:.5g}, and torch raises instead of storing it"
    return [Suspect("overflow", operation, text, abs(beyond[0]), greatest)]


def _mismatched(observation: Observation, operation: Operation, refused: Refused) -> list[Suspect]:
    """Operands of several formats where torch wants one: in float32 all are one, and the code runs. Told is where a wide one left the format."""
    wide = next((place for place, dtype in enumerate(refused.types) if dtype == "float32"), None)
    if wide is None or not refused.dtype:
        return []
    cause = _widened(observation, operation.inputs[wide])
    where = f"made so at {placed(cause)} of what was low" if cause is not None else "what the block was given, or has made of that"
    text = f"torch refuses to put float32 and {refused.dtype} together at {placed(operation)}; the float32 operand is {where}: cast one of them"
    return [Suspect("dtype-leak", cause or operation, text, 2.0, 1.0)]


def _widened(observation: Observation, value: Value) -> Operation | None:
    """The op that made float32 of something low: a cast, or a promotion."""
    if value.low:  # only cast since, which makes no value
        return next((each for each in reversed(observation.operations) if value in each.inputs and value in each.outputs), None)
    maker = value.maker
    while maker is not None and not any(source.low for source in maker.inputs):
        maker = next((source.maker for source in maker.inputs if source.roundoff and source.maker is not maker), None)
    return maker
