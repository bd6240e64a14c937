"""The likely cause of an exception that left the block: a comparison with a number that became zero, or what torch would not store or mix."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from precheck import formats
from precheck.analysis.facts import Fact
from precheck.analysis.provenance import placed
from precheck.analysis.zeros import missed
from precheck.observe.shadow.op_notes import Refused
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.source import shortened

REFUSALS = frozenset({"ZeroDivisionError", "ValueError", "AssertionError", "FloatingPointError", "OverflowError"})
"""What Python code makes of a number that it has read and cannot use; other exceptions may have nothing to do with it."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Unstorable(Fact):
    """A Python number beyond the format that torch was to fill in: -1e20 for a mask, which float16 refuses."""

    scalar: float
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Mixed(Fact):
    """Operands of several formats where torch wants one: in float32 all are one, and the code runs."""

    refused: Operation
    dtype: str
    widened: bool  # whether the block itself has made the wide one of something low, at the op that is blamed


def behind(observation: Observation) -> list[Fact]:
    """At most one: the last thing that the block asked or tried before it raised.

    Comparisons and reads make no floats, so those since the last op that did are what the code was deciding by when it raised. A
    comparison that saw a zero where the reference has a number, and came out otherwise, is what it raised for; else a read of one.
    """
    if not observation.raised or not observation.operations:
        return []
    last = observation.operations[-1]
    if last.refused is not None:
        return _unstorable(last, last.refused) or _mixed(observation, last, last.refused)
    asked = list(_asked(observation))
    for operation, zero in asked:
        if operation.flips is not None and operation.flips.changed:
            return [missed(zero, f"{placed(operation)} came out otherwise, and the block raised {observation.raised}")]
    for operation, zero in asked:
        if operation.reads and observation.raised in REFUSALS:
            return [missed(zero, f"Python read it at {shortened(operation.blamed)}, and the block raised {observation.raised}")]
    return []


def _asked(observation: Observation) -> Iterator[tuple[Operation, Value]]:
    """What made no floats before the block raised, and the zeros that it saw; the latest first."""
    for operation in reversed(observation.operations):
        if operation.outputs:
            return
        zero = next((value for value in operation.inputs if value.zeros and value.maker is not None), None)
        if zero is not None:
            yield operation, zero


def _unstorable(operation: Operation, refused: Refused) -> list[Fact]:
    greatest = formats.of_dtype(refused.dtype).max if refused.dtype else math.inf
    beyond = next((scalar for scalar in operation.scalars if greatest < abs(scalar) < math.inf), None)
    if beyond is None:
        return []
    return [Unstorable(mechanism="overflow", operation=operation, measured=abs(beyond), limit=greatest, scalar=beyond, dtype=refused.dtype)]


def _mixed(observation: Observation, operation: Operation, refused: Refused) -> list[Fact]:
    wide = next((place for place, dtype in enumerate(refused.types) if dtype == "float32"), None)
    if wide is None or not refused.dtype:
        return []
    cause = _widened(observation, operation.inputs[wide])
    return [
        Mixed(
            mechanism="dtype-leak", operation=cause or operation, measured=2.0, limit=1.0, refused=operation, dtype=refused.dtype,
            widened=cause is not None,
        )
    ]  # fmt: skip


def _widened(observation: Observation, value: Value) -> Operation | None:
    """The op that made float32 of something low: a cast, or a promotion."""
    if value.low:  # only cast since, which makes no value
        return next((each for each in reversed(observation.operations) if value in each.inputs and value in each.outputs), None)
    maker = value.maker
    while maker is not None and not any(source.low for source in maker.inputs):
        maker = next((source.maker for source in maker.inputs if source.roundoff and source.maker is not maker), None)
    return maker
