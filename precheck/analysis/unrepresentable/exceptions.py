"""Finds the likely cause of an exception in the watched block: a number that became zero or another whole one, a comparison whose answer differs, a
refused dtype."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable

from precheck import formats, ops
from precheck.analysis.facts import Fact
from precheck.analysis.propagation.attribution import same_function
from precheck.analysis.propagation.causes import rule_for
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.unrepresentable.nonfinite import op_that_moved_argument
from precheck.analysis.unrepresentable.zeros import fact_on_lost_number
from precheck.observe.shadow.op_notes import Refused
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import shortened

REFUSALS = frozenset({"ZeroDivisionError", "ValueError", "AssertionError", "FloatingPointError", "OverflowError"})
"""Exceptions that Python code raises for a number that it has read and cannot use. Other exceptions may have other causes."""

_NO_INDEX = r"(?i)\bindex\b.*\bout of (range|bounds)|\bindices element is out of|class values must be"
"""torch's words for an index or a class outside of a table, where it raises RuntimeError."""


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
class Misindexed(Fact):
    """An integer beyond all that the reference has, since the number that it was made of was rounded, and an index that torch refuses after it."""

    converted: Operation
    was: float
    became: float
    dtype: str
    raised: str


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class MixedFormats(Fact):
    """Operands of different formats for an op that needs equal ones. In a float32 run they are equal, and the code runs."""

    refused: Operation | None  # None if torch looks at the formats before it runs an op
    dtype: str
    widened: Operation | None = None  # the op by which the block itself made the wide one from a low tensor
    other: str = "float32"  # the format of the other operand, which may be another low one


def facts_behind_exception(observation: Observation) -> list[Fact]:
    """At most one fact: on the last comparison, read or op before the block raised.

    The last comparisons and reads have led to the exception. The op to blame made a zero that the reference does not have,
    or else a rounding that changes the answer of a comparison. If there is none, it is a read of such a zero.
    """
    if not observation.raised or not observation.operations:
        return []
    if counted := _counted(observation) or _misindexed(observation):
        return [counted]
    last = observation.operations[-1]
    if last.packet == ops.REFUSING:
        return _refused_matrix(observation)
    if last.refused is not None:
        return _unstorable(last, last.refused) or _mixed(observation, last, last.refused)
    if mixed := _mixed_in_a_call(observation):
        return [mixed]
    last_ops = last_reads(observation)
    zeros = [(operation, [value for value in operation.inputs if value.zeros and value.maker is not None]) for operation in last_ops]
    decisions = [(operation, found[0]) for operation, found in zeros if found]
    for operation, zero in decisions:
        if operation.flips is not None and operation.flips.changed:
            return [fact_on_lost_number(zero, f"{placed(operation)} came out otherwise, and the code raised {observation.raised}")]
    for operation in last_ops:
        cause = op_that_moved_argument(operation, observation) if operation.flips is not None and operation.flips.changed else None
        if cause is not None:
            off, limit = operation.drift_in, cause.outputs[0].rounded
            return [Decided(rule=rule_for(cause), operation=cause, measured=off, limit=limit, comparison=operation, raised=observation.raised)]
    for operation, zero in decisions:
        if operation.reads and observation.raised in REFUSALS:
            return [fact_on_lost_number(zero, f"Python read it at {shortened(operation.blamed)}, and the code raised {observation.raised}")]
    return []


def last_reads(observation: Observation) -> list[Operation]:
    """The comparisons and reads after the last op that made floats, the last first."""
    return list(itertools.takewhile(lambda operation: not operation.outputs, reversed(observation.operations)))


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


def about_an_index(raised: str, complaint: str) -> bool:
    """Whether an exception is about an integer that is no index of a table, no class and no target."""
    return raised == "IndexError" or (raised == "RuntimeError" and re.search(_NO_INDEX, complaint) is not None)


def _misindexed(observation: Observation) -> Misindexed | None:
    """The fact on integers that became too large or too small, since numbers were rounded before the cast that made them, for an index that torch
    refuses.

    Which tensor is the index is not followed. But an index that is refused lies outside of the table. If the message says how large that is, the
    integer must be outside of it, and all integers of the reference inside. Otherwise the reference may be outside too: a warning.
    """
    if not about_an_index(observation.raised, observation.complaint):
        return None
    size = re.search(r"with size (\d+)", observation.complaint)
    for operation in reversed(observation.operations):
        seen, value = operation.recut, operation.inputs[0] if operation.inputs else None
        if seen is None or seen.beyond is None or value is None:
            continue
        was, became, end = seen.beyond
        if size is not None and (_inside(became, size[1]) or not _inside(end, size[1])):
            continue
        cause = op_that_moved_argument(operation, observation) or operation
        dtype = next((each.dtype for each in (*cause.outputs, value) if each.low), value.dtype)
        return Misindexed(
            rule="integer-rounding", operation=cause, measured=abs(became - was), limit=0.0, severity="warning" if size is None else "error",
            converted=operation, was=was, became=became, dtype=dtype, raised=observation.raised,
        )  # fmt: skip
    return None


def _inside(index: float, size: str) -> bool:
    return -int(size) <= index < int(size)


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
    """The fact on operands of different formats that torch refuses to combine.

    A promotion that made the wide one is blamed: nothing in the code says that it widens. A cast to float32 says so. If it is in the function where
    the operands meet, what lacks is another cast there. If it is in another one, that function has handed over a format which it was not given.
    """
    wide = next((place for place, dtype in enumerate(refused.types) if dtype == "float32"), None)
    if wide is None and {"bfloat16", "float16"} <= {*refused.types}:
        return [MixedFormats(rule="dtype-leak", operation=operation, measured=2.0, limit=1.0, refused=operation, dtype="bfloat16", other="float16")]
    if wide is None or not refused.dtype:
        return []
    cause = _op_that_widened(observation, operation.inputs[wide])
    cast_here = cause is not None and cause.outputs[0] in cause.inputs and same_function(cause, operation, observation.functions)
    blamed = operation if cause is None or cast_here else cause
    return [MixedFormats(rule="dtype-leak", operation=blamed, measured=2.0, limit=1.0, refused=operation, dtype=refused.dtype, widened=cause)]


def _mixed_in_a_call(observation: Observation) -> MixedFormats | None:
    """The fact on arguments of different formats for a function of torch that looks at them before it runs an op, as attention and convolution do.

    No op is seen that refuses, but the message names the formats, and an argument of such a call is a value that no op has read. The latest one in
    float32 that the block made of low numbers is blamed; without one, the caller has given both formats, and the message says all that is known.
    Of two low formats the latest such value that the block has cast is blamed: in a float32 run they are one format.
    """
    named = {each.lower() for each in re.findall(r"\b(float|half|bfloat16)\b", observation.complaint, re.IGNORECASE)}
    if observation.raised != "RuntimeError" or len(named) != 2:
        return None
    read = {value for operation in observation.operations for value in operation.inputs}
    made = (value for operation in reversed(observation.operations) for value in operation.outputs)
    if "float" not in named:
        return _of_two_low_formats(value for value in made if value not in read)
    wide = (value for value in made if value.dtype == "float32" and not value.low and value not in read)
    cause = next((found for value in wide if (found := _op_that_widened(observation, value)) is not None), None)
    if cause is None:
        return None
    dtype = "float16" if "half" in named else "bfloat16"
    return MixedFormats(rule="dtype-leak", operation=cause, measured=2.0, limit=1.0, refused=None, dtype=dtype, widened=cause)


def _of_two_low_formats(unread: Iterable[Value]) -> MixedFormats | None:
    """The fact on the first of these values that a cast to a low format has made."""
    cast = (each.maker for each in unread if each.low and each.maker is not None and each.maker.base in ops.CASTS and not each.maker.converts)
    cause = next(cast, None)
    if cause is None:
        return None
    dtype = cause.outputs[0].dtype
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    return MixedFormats(rule="dtype-leak", operation=cause, measured=2.0, limit=1.0, refused=None, dtype=dtype, other=other)


def _op_that_widened(observation: Observation, value: Value) -> Operation | None:
    """The op that made a float32 value from a low one: a cast, or a promotion."""
    if value.low:  # a cast that widens makes no new value
        return _cast(observation, value)
    maker = value.maker
    while maker is not None and not any(source.low for source in maker.inputs):
        maker = next((source.maker for source in maker.inputs if source.roundoff and source.maker is not maker), None)
    if maker is None or maker.mixed:
        return maker
    low = max((source for source in maker.inputs if source.low), key=lambda source: source.norm)
    return _cast(observation, low, maker) or maker  # all it reads is wide, so what was low had been cast


def _cast(observation: Observation, value: Value, before: Operation | None = None) -> Operation | None:
    """The last op that returned a value in another format, before the given one."""
    earlier = (each for each in reversed(observation.operations) if before is None or each.number < before.number)
    return next((each for each in earlier if value in each.inputs and value in each.outputs), None)
