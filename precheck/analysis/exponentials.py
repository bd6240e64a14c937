"""Roundings in an exponent: the absolute error of the argument is the relative error of the exponential.

So an exponent of ten makes ten roundings of one rounding. Where activations make the exponent, that is what their format means: a sharp softmax
errs by six unit roundoffs. Often that rounding need not be there at all, since only few numbers are rounded. They are a loss, a row's sum, a
function of a weight alone, or the one logarithm in each row of a softmax that is taken. To keep these in float32 costs nothing.
"""

from __future__ import annotations

import dataclasses

from precheck import ops
from precheck.analysis import attribution, causes
from precheck.analysis.attribution import Asked, Attribution, Splits
from precheck.analysis.calls import ADDED, OWN
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.output_impact import normalised
from precheck.analysis.provenance import MOVING, effective_roundoff, elements
from precheck.observe.shadow.operations import Observation, Operation, Value

FEW = Limit(
    16, "times",
    """fewer elements than what they are made of, from which numbers are so few that float32 for them costs an eighth, at most, of what it costs to
    read what they are made of.""",
)  # fmt: skip


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Exponent(Fact):
    """A rounding of few numbers, of which an exponential makes a relative error. `operation` is where these are stored low."""

    shown: Operation  # the exponential
    value: Value
    off: float  # relative, of its elements
    own: float  # what storing the few numbers costs
    taken: int  # how many they are


class Exponents:
    """The arguments of exponentials in a part of a run."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.readers = observation, readers
        self.asked, self.splits = Asked(), Splits()

    def error(self, operation: Operation, value: Value) -> Exponent | None:
        """Of an exponential whose argument is off by one such rounding, more than a cast may cost that its author wrote."""
        written = operation.phase in ("forward", "data") and not operation.derived
        if operation.base not in ops.EXPONENTIALS or not written or value.nonfinite or not operation.inputs:
            return None
        argument, line = operation.inputs[0], (operation.name, operation.blamed)
        off = causes.absolute(argument)
        if not ADDED * effective_roundoff(argument) < off < 1 or not argument.roundoff or not self.asked.again(line):
            return None
        made = Attribution(argument, self.observation.operations, self.splits)
        few = {each: _needless(each) or _picked(each, self.readers) for each in made.shares}
        needless = {each for each, count in few.items() if count}
        cause = made.cause(needless.__contains__)
        theirs = sum(share for each, share in made.shares.items() if each in needless)
        if cause is None or theirs < OWN or normalised(value, self.readers):
            self.asked.vain(line)
            return None
        return Exponent(
            mechanism="amplified-rounding", operation=cause, measured=off / effective_roundoff(argument), limit=ADDED, shown=operation, value=value,
            off=off, own=causes.own(cause.outputs[0]), taken=few[cause],
        )  # fmt: skip


def _needless(cause: Operation) -> int:
    """How many numbers an op of the user stores low without need: a statistic, or what it makes of a weight alone. 0 where they are not few."""
    made = cause.outputs[0] if cause.outputs else None
    if made is None or not made.low or not cause.inputs or not attribution.written(cause):
        return 0
    if cause.base in ops.AVERAGES:  # which add up in float32, and round at the end
        few = elements(made) == 1 or elements(made) * FEW <= max(elements(source) for source in cause.inputs)
    else:
        few = bool(cause.parameter) and len(cause.inputs) == 1 and cause.base not in MOVING
    return elements(made) if few else 0


def _picked(cause: Operation, readers: Readers) -> int:
    """How many logarithms of a softmax are taken, of those that an op of the user stores low. 0 where they are not few, or another op reads them."""
    made = cause.outputs[0] if cause.outputs else None
    if made is None or cause.base not in ops.SOFTMAXES or not made.low or not attribution.written(cause):
        return 0
    taking = [reader for reader in readers.get(made, ()) if reader.phase in ("forward", "data")]
    taken = sum(elements(part) for reader in taking for part in reader.outputs)
    return taken if all(reader.base in MOVING for reader in taking) and taken * FEW <= elements(made) else 0
