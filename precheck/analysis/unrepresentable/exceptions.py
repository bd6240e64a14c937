"""Finds the likely cause of an exception in the watched block: a number that became zero or another whole one, a comparison whose answer differs, a
refused dtype."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

from precheck import formats, ops
from precheck.analysis.facts import Fact
from precheck.analysis.propagation.causes import rule_for
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.unrepresentable.nonfinite import op_that_moved_argument
from precheck.analysis.unrepresentable.zeros import fact_on_lost_number
from precheck.observe.shadow.op_notes import Refused
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import shortened

REFUSALS = frozenset({"ZeroDivisionError", "ValueError", "AssertionError", "FloatingPointError", "OverflowError"})
"""Exceptions that Python code raises for a number that it has read and cannot use. Other exceptions may have other causes."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Unstorable(Fact):
    """A Python number that is too large for the format of a tensor to be filled: -1e20 for a float16 mask, which torch refuses."""

    scalar: float
    dtype: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Decided(Fact):
    """A rounding that gives a comparison another answer than in the reference, after which the block raised."""

    comparison: Operation
    raised: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Counted(Fact):
    """A whole number that the format rounded to another, that Python read, and that the exception compares with the right one."""

    read: Operation
    became: float
    raised: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class MixedFormats(Fact):
    """Operands of different formats for an op that needs equal ones. In a float32 run they are equal, and the code runs."""

    refused: Operation | None  # None if torch looks at the formats before it runs an op
    dtype: str
    widened: bool  # whether the block itself made the wide one from a low tensor, at the op that is blamed


def facts_behind_exception(observation: Observation) -> list[Fact]:
    """At most one fact: on the last comparison, read or op before the block raised.

    Comparisons and reads after the last op that made floats have led to the exception. The op to blame made a zero that the reference does not have,
    or else a rounding that changes the answer of a comparison. If there is none, it is a read of such a zero.
    """
    if not observation.raised or not observation.operations:
        return []
    if counted := _counted(observation):
        return [counted]
    last = observation.operations[-1]
    if last.packet == ops.REFUSING:
        return _refused_matrix(observation)
    if last.refused is not None:
        return _unstorable(last, last.refused) or _mixed(observation, last, last.refused)
    if mixed := _mixed_in_a_call(observation):
        return [mixed]
    last_ops = list(itertools.takewhile(lambda operation: not operation.outputs, reversed(observation.operations)))
    zeros = [(operation, [value for value in operation.inputs if value.zeros and value.maker is not None]) for operation in last_ops]
    decisions = [(operation, found[0]) for operation, found in zeros if found]
    for operation, zero in decisions:
        if operation.flips is not None and operation.flips.changed:
            return [fact_on_lost_number(zero, f"{placed(operation)} came out otherwise, and the block raised {observation.raised}")]
    for operation in last_ops:
        cause = op_that_moved_argument(operation, observation) if operation.flips is not None and operation.flips.changed else None
        if cause is not None:
            off, limit = operation.drift_in, cause.outputs[0].rounded
            return [Decided(rule=rule_for(cause), operation=cause, measured=off, limit=limit, comparison=operation, raised=observation.raised)]
    for operation, zero in decisions:
        if operation.reads and observation.raised in REFUSALS:
            return [fact_on_lost_number(zero, f"Python read it at {shortened(operation.blamed)}, and the block raised {observation.raised}")]
    return []


def _counted(observation: Observation) -> Counted | None:
    """The fact on a whole number that the format could not hold, if the exception's message has it beside the number that it should be.

    One whole number alone may be a measure, and what Python makes of a number that it reads is not seen. But a message that has both numbers, such as
    torch's on two sizes that differ, says that the program compares them.
    """
    named = set(map(float, re.findall(r"\d+", observation.complaint)))
    for operation in observation.operations if len(named) > 1 else ():
        value = operation.inputs[0] if operation.reads and operation.inputs else None
        if value is None or not value.low or not value.wholes_moved or math.prod(value.shape) != 1:
            continue
        became, cause = formats.of_dtype(value.dtype).round(value.peak), op_that_moved_argument(operation, observation)
        if cause is not None and became != value.peak and {became, value.peak} <= named:
            return Counted(
                rule="integer-rounding", operation=cause, measured=value.peak, limit=1 / value.roundoff, read=operation, became=became,
                raised=observation.raised,
            )  # fmt: skip
    return None


def _refused_matrix(observation: Observation) -> list[Fact]:
    """The rounding by which a matrix that the reference can factorise has no factors."""
    factors = next((operation for operation in reversed(observation.operations) if operation.packet in ops.REPORTING), None)
    if factors is None or factors.flips is None or not factors.flips.changed:
        return []
    cause = op_that_moved_argument(factors, observation) or factors
    off, limit = factors.drift_in, max((value.rounded for value in cause.outputs), default=0.0)
    return [Decided(rule=rule_for(cause), operation=cause, measured=off, limit=limit, comparison=factors, raised=observation.raised)]


def _unstorable(operation: Operation, refused: Refused) -> list[Fact]:
    """The fact on a Python number that torch refuses to store."""
    greatest = formats.of_dtype(refused.dtype).max if refused.dtype else math.inf
    beyond = next((scalar for scalar in operation.scalars if greatest < abs(scalar) < math.inf), None)
    if beyond is None:
        return []
    return [Unstorable(rule="overflow", operation=operation, measured=abs(beyond), limit=greatest, scalar=beyond, dtype=refused.dtype)]


def _mixed(observation: Observation, operation: Operation, refused: Refused) -> list[Fact]:
    """The fact on operands of different formats that torch refuses to combine."""
    wide = next((place for place, dtype in enumerate(refused.types) if dtype == "float32"), None)
    if wide is None or not refused.dtype:
        return []
    cause = _op_that_widened(observation, operation.inputs[wide])
    return [
        MixedFormats(
            rule="dtype-leak", operation=cause or operation, measured=2.0, limit=1.0, refused=operation, dtype=refused.dtype,
            widened=cause is not None,
        )
    ]  # fmt: skip


def _mixed_in_a_call(observation: Observation) -> MixedFormats | None:
    """The fact on arguments of different formats for a function of torch that looks at them before it runs an op, as attention does.

    No op is seen that refuses, but the message names the formats, and an argument of such a call is a value that no op has read. The latest one in
    float32 that the block made of low numbers is blamed; without one, the caller has given both formats, and the message says all that is known.
    """
    named = {each.lower() for each in re.findall(r"\b(float|half|bfloat16)\b", observation.complaint, re.IGNORECASE)}
    if observation.raised != "RuntimeError" or "float" not in named or len(named) != 2:
        return None
    read = {value for operation in observation.operations for value in operation.inputs}
    made = (value for operation in reversed(observation.operations) for value in operation.outputs)
    wide = (value for value in made if value.dtype == "float32" and not value.low and value not in read)
    cause = next((found for value in wide if (found := _op_that_widened(observation, value)) is not None), None)
    if cause is None:
        return None
    dtype = "float16" if "half" in named else "bfloat16"
    return MixedFormats(rule="dtype-leak", operation=cause, measured=2.0, limit=1.0, refused=None, dtype=dtype, widened=True)


def _op_that_widened(observation: Observation, value: Value) -> Operation | None:
    """The op that made a float32 value from a low one: a cast, or a promotion."""
    if value.low:  # a cast that widens makes no new value
        return next((each for each in reversed(observation.operations) if value in each.inputs and value in each.outputs), None)
    maker = value.maker
    while maker is not None and not any(source.low for source in maker.inputs):
        maker = next((source.maker for source in maker.inputs if source.roundoff and source.maker is not maker), None)
    return maker
