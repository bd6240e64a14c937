"""What a call of a user's function makes itself: how far off what it gives is from float32 on the inputs that it had.

A function that is written with care rounds what it gives, and where the precision rounds. The functions of 18 healthy networks err by up to one
unit roundoff of their own, and by 3.8 where a product made low passes a softmax. One that errs by more has a rounding in it that later ops amplify.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from precheck.judge import attribution
from precheck.judge.attribution import Attribution
from precheck.judge.events import Suspect
from precheck.judge.lineage import MOVING, PRODUCTS, REDUCTIONS, SUMS, determined, felt, percent, placed
from precheck.observe.shadow.operations import Observation, Operation, Value

ADDED = 4.0
"""Unit roundoffs that a function may err where the error is that of one cast that its author wrote, of what it had computed wide. Without that cast
there would be none. One rounding is 0.42 unit roundoffs, so that is ten of them. Healthy functions reach 1.0."""
ROUNDED = 13.0
"""The same where it is the rounding of low arithmetic, or of a product, which autocast has low: five bits, 32 times 0.42 unit roundoffs, as for one
op (`rounding.PLAIN`). The softmax of sharp scores errs by 6, and in 18 healthy networks by 3.8."""
OWNED = 0.5
"""Share of the square of the error from which it is one op's. A difference of near-equals owns that of its terms."""
OWN = 0.75
"""Share of the square of the whole error that the function has made itself, from which to mend it halves the error at least."""
COARSE = 2.0**-8
"""Unit roundoff by which the error of a subnormal number, or of one that became zero, is measured: bfloat16's, as it lacks bits as bfloat16 does."""


class Calls:
    """The calls of functions in a part of a run."""

    def __init__(self, observation: Observation, readers: dict[Value, list[Operation]]) -> None:
        self.functions, self.readers = observation.functions, readers
        self.operations: dict[int, list[Operation]] = defaultdict(list)
        for operation in observation.operations:
            if operation.call:
                self.operations[operation.call].append(operation)
        self.cancelled: set[Value] = set()  # sums whose terms cancel, and what is made of them, beside which every error is large

    def judged(self, operation: Operation, value: Value) -> Suspect | None:
        """A finding on `value`, which `operation` has made, if it leaves its function with an error that one rounding in the function has made."""
        if not self._its_own(operation, value):
            return None
        made = Attribution(value, self.operations[operation.call], _error_in(operation.call))
        cause = self._owner(made)
        if cause is None:
            return None
        off, limit = value.restarted, self._limit(cause)
        if off <= limit * (max(felt(value), COARSE) if _below(cause) else felt(value)):
            return None
        return self._worded(operation, value, cause, made.difference(cause, self.functions), limit)

    def _its_own(self, operation: Operation, value: Value) -> bool:
        """Whether a result that leaves its function is off by more than rounding it costs, and most of that is the function's own error."""
        cancelled = self._cancels(operation, value)
        if cancelled or value.restarted <= ADDED * felt(value) or operation.base in MOVING or not self._leaves(operation, value):
            return False
        return value.restarted**2 >= OWN * value.drift**2 and determined(operation, value)

    def _owner(self, made: Attribution) -> Operation | None:
        """The op that owns an error; None where nothing the user has written does, and where `absorption` tells of the additions on that line."""
        cause = made.cause()
        if cause is None or not attribution.written(cause):
            return None
        if any(each.absorbed is not None and each.blamed == cause.blamed for each in made.shares):
            return None
        return cause if made.shares[cause] >= OWNED or made.difference(cause, self.functions) is not None else None

    def _worded(self, operation: Operation, value: Value, cause: Operation, difference: Operation | None, limit: float) -> Suspect:
        off, own, place = value.restarted, attribution.own(cause, cause.outputs[0]), self.functions.get(operation.blamed)
        name, roundoffs = f"{place.name}()" if place is not None else "the function", off / felt(value)
        text = f"{name} is off by {percent(off)} % on the inputs it has, {roundoffs:.0f} unit roundoffs of its own: "
        if difference is not None:
            return Suspect("cancellation", difference, f"{text}a difference of near-equals, in {difference.outputs[0].dtype}", roundoffs, limit)
        if own == cause.outputs[0].local:
            return Suspect("local-drift", cause, f"{text}this op makes it", roundoffs, limit)
        if _below(cause):
            return Suspect("underflow", cause, f"{text}numbers become subnormal or zero here ({percent(min(own, 1.0))} %)", roundoffs, limit)
        text += f"a rounding to {cause.outputs[0].dtype} here ({own:.2g} relative) is amplified {off / own:.0f} times by {placed(operation)}"
        return Suspect("amplified-rounding", cause, text, roundoffs, limit)

    def _limit(self, cause: Operation) -> float:
        made = cause.outputs[0]
        multiplied = any(reader.base in PRODUCTS for reader in self.readers.get(made, ()))
        cast = cause.base in ("_to_copy", "copy") and not any(source.low for source in cause.inputs)
        return ADDED if cast and not multiplied else ROUNDED

    def _leaves(self, operation: Operation, value: Value) -> bool:
        """Whether its function gives it out, or adds up its elements (of which those that became zero add nothing, as they should beside an eps)."""
        readers = [reader for reader in self.readers.get(value, ()) if reader.phase in ("forward", "data")]
        if not readers:
            return value.alive  # so far: `stays` asks again when it has been read
        here = operation.call, self.functions.get(operation.blamed)
        summed = REDUCTIONS - SUMS if value.zeroed < OWNED * value.drift else frozenset()
        return any(reader.reads or reader.base in summed or (reader.call, self.functions.get(reader.blamed)) != here for reader in readers)

    def stays(self, suspect: Suspect, value: Value, readers: dict[Value, list[Operation]]) -> bool:
        """An excuse: what reads it after all is its own function."""
        self.readers = readers
        return value.maker is not None and bool(readers.get(value)) and not self._leaves(value.maker, value)

    def _cancels(self, operation: Operation, value: Value) -> bool:
        """Whether it is a sum whose terms cancel, or made of one."""
        error, handed = _error_in(operation.call), any(source in self.cancelled for source in operation.inputs)
        before = max((error(source) for source in operation.inputs), default=0.0)
        made = operation.base in REDUCTIONS - SUMS and error(value) > 2 * max(before, attribution.own(operation, value))
        if handed or made:
            self.cancelled.add(value)
        return handed or made


def _below(cause: Operation) -> bool:
    """Whether an op's error is that of numbers near the end of their format."""
    made = cause.outputs[0]
    return attribution.own(cause, made) > 2 * max(made.rounded, made.local or 0.0)


def _error_in(call: int) -> Callable[[Value], float]:
    """The error of a value that the call has made."""
    return lambda value: value.restarted if value.maker is not None and value.maker.call == call else 0.0
