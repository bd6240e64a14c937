"""Finds needless roundings in an exponent. The absolute error of the argument is the relative error of the exponential.

So an exponent of ten turns one rounding into ten. If the exponent is made from activations, their format implies that error: a sharp softmax errs by
six unit roundoffs. But if only few numbers are rounded, the rounding is needless, since they cost nothing in float32. Such numbers are a loss, a
row's sum, a function of a weight alone, or the single logarithm that is taken from each row of a log-softmax.
"""

from __future__ import annotations

import dataclasses

from precheck import ops
from precheck.analysis import attribution, causes
from precheck.analysis.attribution import Attempts, Attribution, Splits
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.function_errors import ADDED, OWN, remaining
from precheck.analysis.limit import Limit
from precheck.analysis.output_impact import normalised
from precheck.analysis.provenance import effective_roundoff, elements
from precheck.observe.shadow.operations import Observation, Operation, Value

FEW = Limit(
    16, "times",
    """Numbers are few if they were made from at least this many times as many elements. To store them in float32 then costs at most an eighth of
    reading those elements.""",
)  # fmt: skip


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Exponent(Fact):
    """A rounding of few numbers that becomes the relative error of an exponential. `operation` stores them low."""

    shown: Operation  # the exponential
    value: Value
    off: float  # the relative error of its elements
    own: float  # the error of storing the few numbers
    taken: int  # how many numbers are rounded


class Exponents:
    """Judges the arguments of exponentials in a part of a run."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.readers = observation, readers
        self.attempts, self.splits = Attempts(), Splits()

    def error(self, operation: Operation, value: Value) -> Exponent | None:
        """The fact on an exponential whose argument has the error of a needless rounding, if that is above the limit for a user's cast."""
        written = operation.phase in ("forward", "data") and not operation.derived
        if operation.base not in ops.EXPONENTIALS or not written or value.nonfinite or not operation.inputs:
            return None
        argument, line = operation.inputs[0], (operation.name, operation.blamed)
        off = causes.absolute(argument)
        if not ADDED * effective_roundoff(argument) < off < 1 or not argument.roundoff or not self.attempts.due(line):
            return None
        made = Attribution(argument, self.observation.operations, self.splits)
        few = {each: _needless(each) or _picked(each, self.readers) for each in made.shares}
        needless = {each for each, count in few.items() if count}
        cause = made.cause(needless.__contains__)
        theirs = sum(share for each, share in made.shares.items() if each in needless)
        if cause is None or theirs < OWN or normalised(value, self.readers):
            self.attempts.failed(line)
            return None
        return Exponent(
            mechanism="amplified-rounding", operation=cause, measured=off / effective_roundoff(argument), limit=ADDED, shown=operation, value=value,
            off=off, own=causes.storage_error(cause.outputs[0]), taken=few[cause],
        )  # fmt: skip


def _needless(cause: Operation) -> int:
    """How many numbers an op of the user stores low without need: a statistic, or a function of a weight alone. 0 if they are not few."""
    made = cause.outputs[0] if cause.outputs else None
    if made is None or not made.low or not cause.inputs or not attribution.written(cause):
        return 0
    if cause.base in ops.REDUCTIONS and remaining(cause, made) < 1 and made.drift > 2 * max(cause.drift_in, causes.storage_error(made)):
        return 0  # not storing it has made most of its error: the terms of the sum cancel
    if cause.base in ops.AVERAGES:  # these add up in float32, and round at the end
        few = elements(made) == 1 or elements(made) * FEW <= max(elements(source) for source in cause.inputs)
    else:
        few = bool(cause.parameter) and len(cause.inputs) == 1 and cause.base not in ops.MOVING
    return elements(made) if few else 0


def _picked(cause: Operation, readers: Readers) -> int:
    """How many elements are taken from a log-softmax that the user's code stores low. 0 if they are not few, or another op reads them."""
    made = cause.outputs[0] if cause.outputs else None
    if made is None or cause.base not in ops.SOFTMAXES or not made.low or not attribution.written(cause):
        return 0
    taking = [reader for reader in readers.get(made, ()) if reader.phase in ("forward", "data")]
    taken = sum(elements(part) for reader in taking for part in reader.outputs)
    return taken if all(reader.base in ops.MOVING for reader in taking) and taken * FEW <= elements(made) else 0
