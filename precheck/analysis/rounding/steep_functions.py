"""Finds a rounding that a steep function amplifies, even if the two are in different functions of the program. The rounding is a cast in the user's
code, or a table that the model's conversion rounds.

`function_errors` judges each user function by itself, so it misses a rounding that another one amplifies. Here the error is followed over the
whole run. Only ops of one operand count: in sums, products and norms terms cancel, and `rounding` judges those. So does a sample of a field, which
is a function of its place: it adds a mean of the field's elements, and what its error is larger than theirs comes of the place.

Of an exponential the absolute error of the argument is the relative error, so an exponent of ten turns one rounding into ten. If the exponent is made
from activations, their format implies that error: a sharp softmax errs by six unit roundoffs. But if only few numbers are rounded, the rounding is
needless, since they cost nothing in float32. Such numbers are a loss, a row's sum, a function of a weight alone, or the single logarithm that is
taken from each row of a log-softmax.
"""

from __future__ import annotations

import dataclasses

from precheck import ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import GROWN, INTERPOLATING, Attribution, Splits
from precheck.analysis.propagation.output_impact import DEAD, is_softmax_exponential
from precheck.analysis.propagation.provenance import absolute_error, determined, effective_roundoff, elements, share_left_by_cancellation
from precheck.analysis.propagation.walks import Attempts
from precheck.analysis.rounding.differences import DIGITS, LOSES_FIVE_BITS, amplification
from precheck.analysis.rounding.function_limits import ADDED, MADE_BY_FUNCTION
from precheck.observe.shadow.operations import Observation, Operation, Value

NOT_STEEP = ops.SUMS | ops.REDUCTIONS | ops.MOVING | ops.CENTRED | ops.CUTS | ops.DIFFERENCES | ops.DECOMPOSED
"""Ops whose result may have a large error for other reasons: terms cancel, elements are moved or cut, or a small gap is a divisor."""
TIMES_FEWER = Limit(16, "times")
"""Numbers are few if they were made from at least this many times as many elements. To store them in float32 then costs at most an eighth of reading
those elements."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Steep(Fact):
    """The error of one rounding, amplified by a function of one operand, or of a place. Errors are relative."""

    shown: Operation  # the function
    off: float
    own: float  # the error of the rounding itself
    dtype: str  # to which it rounds
    table: bool  # whether the rounding is a conversion of a tensor that the model holds
    chained: bool = False  # whether a difference before the function has amplified it as well


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Exponent(Fact):
    """A rounding of few numbers that becomes the relative error of an exponential. `operation` stores them low."""

    shown: Operation  # the exponential
    value: Value
    off: float  # the relative error of its elements
    own: float  # the error of storing the few numbers
    taken: int  # how many numbers are rounded


class Steepness:
    """Finds the steep functions in a part of a run, and the exponentials."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.readers = observation, readers
        self.attempts, self.splits = Attempts(), Splits()

    def error(self, operation: Operation, value: Value) -> Steep | None:
        """The error of a function's result, if one rounding made three quarters of its square, and it is too large.

        The limits are four unit roundoffs, as for a cast within a function, and four times the error of the input: two bits.
        """
        line = operation.name, operation.blamed
        if not _steep(operation, value) or not self.attempts.due(line):
            return None
        made = Attribution(value, self.observation.operations, self.splits)
        cast = self._written(made) or _converted(made)
        if cast is None:
            self.attempts.failed(line)
            return None
        blamed = self._computing(cast) if cast.converts else cast
        return Steep(
            rule="amplified-rounding", operation=blamed, measured=value.drift / effective_roundoff(value), limit=ADDED, shown=operation,
            off=value.drift, own=attribution.own_error(cast, cast.outputs[0]), dtype=cast.outputs[0].dtype, table=bool(cast.converts),
            severity="note" if cast.converts else "error",  # the precision asks for it, and at few positions its error is small
        )  # fmt: skip

    def chained(self, operation: Operation, value: Value) -> Steep | None:
        """The error of a function's result, if a small difference before it has amplified the rounding of one line as well. They may all be in
        different functions of the program.

        Amplifications multiply, as those of two differences do (`differences.amplified_in_all`). A difference that loses three bits is what correct
        code has, and so is a function that loses three. Together they lose five bits or more of what one line has stored. That line is blamed if it
        made three quarters of the square: without it the error is at most half as large. The difference is stored low. A small difference in float32,
        of what low weights have made, is as exact as its terms, and so is what follows (`Errors.small_differences`).
        """
        line = operation.name, operation.blamed
        if value.dead < DEAD or not _steep(operation, value) or not self.attempts.due(line):
            return None
        made = Attribution(value, self.observation.operations, self.splits)
        cause = made.cause(attribution.written)
        own = attribution.own_error(cause, cause.outputs[0]) if cause is not None and made.of_line(cause) >= MADE_BY_FUNCTION else 0.0
        gain = value.drift / max(own, value.rounded) if own else 0.0
        if cause is None or gain < LOSES_FIVE_BITS or not any(map(_small_difference, made.through)):
            self.attempts.failed(line)
            return None
        return Steep(
            rule="amplified-rounding", operation=cause, measured=gain, limit=LOSES_FIVE_BITS, shown=operation, off=value.drift, own=own,
            dtype=cause.outputs[0].dtype, table=False, chained=True,
        )  # fmt: skip

    def exponent(self, operation: Operation, value: Value) -> Exponent | None:
        """The fact on an exponential whose argument has the error of a needless rounding, if that is above the limit for a user's cast."""
        written = operation.phase in ("forward", "data") and not operation.derived
        if operation.base not in ops.EXPONENTIALS or not written or value.nonfinite or not operation.inputs:
            return None
        argument, line = operation.inputs[0], ("exponent", operation.name, operation.blamed)
        off = absolute_error(argument)
        if not ADDED * effective_roundoff(argument) < off < 1 or not argument.roundoff or not self.attempts.due(line):
            return None
        made = Attribution(argument, self.observation.operations, self.splits)
        few = {each: _needless(each) or _picked(each, self.readers) for each in made.shares}
        needless = {each for each, count in few.items() if count}
        cause = made.cause(needless.__contains__)
        theirs = sum(share for each, share in made.shares.items() if each in needless)
        if cause is None or theirs < MADE_BY_FUNCTION or is_softmax_exponential(value, self.readers):
            self.attempts.failed(line)
            return None
        return Exponent(
            rule="amplified-rounding", operation=cause, measured=off / effective_roundoff(argument), limit=ADDED, shown=operation, value=value,
            off=off, own=causes.storage_error(cause.outputs[0]), taken=few[cause],
        )  # fmt: skip

    def _written(self, made: Attribution) -> Operation | None:
        """The cast of a computed wide value on the line that made the error, in a function that computes with the result. Of several casts on that
        line, as of a list of tensors, it is the one that made most."""
        cause = made.cause(attribution.written)
        if cause is None or made.of_line(cause) < MADE_BY_FUNCTION:
            return None
        casts = (each for each, share in made.shares.items() if share and each.line == cause.line and self._goes_on(each))
        return max(casts, key=made.shares.__getitem__, default=None)

    def _goes_on(self, cast: Operation) -> bool:
        """Whether a function computes with the result of its own cast. It may store low what it only returns, and may cast data that it is given."""
        if not _narrowing(cast) or not attribution.written(cast) or cast.inputs[-1].maker is None or cast.inputs[-1].maker.base in ops.WHOLE_COPIES:
            return False
        readers, functions = self.readers.get(cast.outputs[0], ()), self.observation.functions
        return any(reader.base not in ops.MOVING and attribution.same_function(reader, cast, functions) for reader in readers)

    def _computing(self, cast: Operation) -> Operation:
        """The first op that computes with the result of a cast: there the rounding enters the user's code."""
        followed = {cast.outputs[0]}
        for reader in self.observation.operations:
            if reader.number > cast.number and not followed.isdisjoint(reader.inputs):
                if reader.base not in ops.MOVING:
                    return reader
                followed.update(reader.outputs)
        return cast


def _steep(operation: Operation, value: Value) -> bool:
    if (len(operation.inputs) != 1 and operation.base not in INTERPOLATING) or operation.base in NOT_STEEP or operation.plain:
        return False
    grown = value.drift > ADDED * effective_roundoff(value) and value.drift >= GROWN * operation.drift_in > 0
    return grown and determined(value)


def _small_difference(operation: Operation) -> bool:
    """Whether an op subtracts in a low format, and amplifies the error of its terms."""
    return operation.base in ops.SUMS and operation.outputs[0].kept_low and amplification(operation, operation.outputs[0]) >= DIGITS


def _narrowing(operation: Operation) -> bool:
    cast = operation.base in ops.CASTS and bool(operation.inputs) and bool(operation.outputs)
    return cast and operation.outputs[0].low and not operation.inputs[-1].low


def _converted(made: Attribution) -> Operation | None:
    """The conversion of a tensor that the model holds, if its rounding made the error."""
    return next((each for each, share in made.shares.items() if share >= MADE_BY_FUNCTION and each.converts == "held" and _narrowing(each)), None)


def _needless(cause: Operation) -> int:
    """How many numbers an op of the user stores low without need: a statistic, or a function of a weight alone. 0 if they are not few."""
    made = cause.result
    if made is None or not made.low or not cause.inputs or not attribution.written(cause):
        return 0
    larger = made.drift > 2 * max(cause.drift_in, causes.storage_error(made))
    if larger and cause.base in ops.REDUCTIONS and share_left_by_cancellation(cause, made) < 1:
        return 0  # not storing it has made most of its error: the terms of the sum cancel
    if cause.base in ops.AVERAGES:  # these add up in float32, and round at the end
        few = elements(made) == 1 or elements(made) * TIMES_FEWER <= max(elements(source) for source in cause.inputs)
    else:
        few = bool(cause.parameter) and len(cause.inputs) == 1 and cause.base not in ops.MOVING
    return elements(made) if few else 0


def _picked(cause: Operation, readers: Readers) -> int:
    """How many elements are taken from a log-softmax that the user's code stores low. 0 if they are not few, or another op reads them."""
    made = cause.result
    if made is None or cause.base not in ops.SOFTMAXES or not made.low or not attribution.written(cause):
        return 0
    taking = [reader for reader in readers.get(made, ()) if reader.phase in ("forward", "data")]
    taken = sum(elements(part) for reader in taking for part in reader.outputs)
    return taken if all(reader.base in ops.MOVING for reader in taking) and taken * TIMES_FEWER <= elements(made) else 0
