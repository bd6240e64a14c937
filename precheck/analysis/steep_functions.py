"""A rounding that a steep function makes large, wherever the two stand. The rounding is a cast that the author wrote, or a table that the model's
conversion rounds.

`calls` asks what a function makes itself, and so sees no rounding that one function makes and another amplifies. Here the whole way is looked at,
and only functions of one operand. In sums, products and norms terms cancel, and `rounding` has its own measure of that.
"""

from __future__ import annotations

import dataclasses

from precheck import ops
from precheck.analysis import attribution
from precheck.analysis.attribution import GROWN, Asked, Attribution, Splits
from precheck.analysis.calls import ADDED, OWN
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.provenance import MOVING, REDUCTIONS, SUMS, determined, effective_roundoff
from precheck.observe.shadow.operations import Observation, Operation, Value

NOT_STEEP = SUMS | REDUCTIONS | MOVING | ops.CENTRED | ops.CUTS | ops.DIFFERENCES | ops.DECOMPOSED
"""Ops whose result's error is large since terms cancel, elements are moved or cut, or a small gap is divided by."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Steep(Fact):
    """An error that is one rounding's, made large by a function of one operand. Errors are relative."""

    shown: Operation  # the function
    off: float
    own: float  # the error that the rounding itself is
    dtype: str  # to which it rounds
    table: bool  # whether it is the conversion's, of a tensor that the model holds


class Steepness:
    """The steep functions of a part of a run."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.readers = observation, readers
        self.asked, self.splits = Asked(), Splits()

    def error(self, operation: Operation, value: Value) -> Steep | None:
        """The error of a function's result, if three quarters of its square are one rounding's, and it is beyond what that rounding may cost.

        That is four unit roundoffs, as for a cast within a function, and four times what came in: two bits.
        """
        line = operation.name, operation.blamed
        if not _steep(operation, value) or not self.asked.again(line):
            return None
        made = Attribution(value, self.observation.operations, self.splits)
        cast = self._written(made) or _converted(made)
        if cast is None:
            self.asked.vain(line)
            return None
        blamed = self._computing(cast) if cast.converts else cast
        return Steep(
            mechanism="amplified-rounding", operation=blamed, measured=value.drift / effective_roundoff(value), limit=ADDED, shown=operation,
            off=value.drift, own=attribution.own(cast, cast.outputs[0]), dtype=cast.outputs[0].dtype, table=bool(cast.converts),
            severity="note" if cast.converts else "error",  # a converted table is as the format stores it, and few positions make little of it
        )  # fmt: skip

    def _written(self, made: Attribution) -> Operation | None:
        """The cast of what had been computed wide, on the line whose rounding it is, by a function that goes on computing with it."""
        cause = made.cause(attribution.written)
        if cause is None or made.of_line(cause) < OWN:
            return None
        return next((each for each in made.shares if each.blamed == cause.blamed and self._goes_on(each)), None)

    def _goes_on(self, cast: Operation) -> bool:
        """What a function stores low and hands over is rounded where the precision rounds; data that it casts are as given."""
        if not _narrowing(cast) or not attribution.written(cast) or cast.inputs[-1].maker is None or cast.inputs[-1].maker.base in ops.WHOLE_COPIES:
            return False
        here = self.observation.functions.get(cast.blamed)
        readers = self.readers.get(cast.outputs[0], ())
        return any(reader.base not in MOVING and self.observation.functions.get(reader.blamed) == here for reader in readers)

    def _computing(self, cast: Operation) -> Operation:
        """The first op that computes with what was cast: that of the user's code at which the rounding enters."""
        followed = {cast.outputs[0]}
        for reader in self.observation.operations:
            if reader.number > cast.number and not followed.isdisjoint(reader.inputs):
                if reader.base not in MOVING:
                    return reader
                followed.update(reader.outputs)
        return cast


def _steep(operation: Operation, value: Value) -> bool:
    if len(operation.inputs) != 1 or operation.base in NOT_STEEP or operation.plain:
        return False
    grown = value.drift > ADDED * effective_roundoff(value) and value.drift >= GROWN * operation.drift_in > 0
    return grown and determined(operation, value)


def _narrowing(operation: Operation) -> bool:
    cast = operation.base in ops.CASTS and bool(operation.inputs) and bool(operation.outputs)
    return cast and operation.outputs[0].low and not operation.inputs[-1].low


def _converted(made: Attribution) -> Operation | None:
    """The conversion of a tensor that the model holds, whose rounding it is."""
    return next((each for each, share in made.shares.items() if share >= OWN and each.converts == "held" and _narrowing(each)), None)
