"""Finds the error that a call of a user function makes itself: how far its result is from float32's on the same inputs.

A carefully written function rounds its result, and where the precision rounds. The functions of 18 healthy networks have an own error of up to one
unit roundoff, and of 3.8 if a low product passes a softmax. In one with a larger error, later ops amplify a rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from typing import Literal

from precheck import formats, ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.noise_floor.noise import FAIL
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import Attribution, Splits
from precheck.analysis.propagation.entrances import Entrances
from precheck.analysis.propagation.output_impact import GARBAGE, dropped_values
from precheck.analysis.propagation.provenance import determined, effective_roundoff, rms, share_left_by_cancellation, smallest_normal
from precheck.analysis.propagation.walks import Attempts
from precheck.analysis.rounding import function_loops
from precheck.analysis.rounding.function_limits import ADDED, COARSE, MADE_BY_FUNCTION, OWNED, ROUNDED, asked, cut_off, of_small_numbers
from precheck.analysis.rounding.function_results import Results
from precheck.analysis.rounding.remainders import takes_from_bits, takes_from_codes
from precheck.analysis.rounding.written_steps import steps
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.places.source import Function
from precheck.words import of_norm

Making = Literal["a difference", "the op itself", "small numbers", "a constant", "a rounding"]
_RULE: dict[Making, str] = {
    "a difference": "cancellation", "the op itself": "local-drift", "small numbers": "underflow", "a rounding": "amplified-rounding",
    "a constant": "vanished-constant",
}  # fmt: skip


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class OwnError(Fact):
    """An error that a call of a user function makes itself, and its cause. Errors are relative."""

    function: str  # its name, or "" if unknown
    made: Making
    shown: Operation  # the op whose result leaves the function
    off: float
    own: float  # the error of the blamed op itself
    turns: int = 0  # of a loop, in each of which it made one

    @property
    def found(self) -> str:
        """The error of the function, in words."""
        name = f"{self.function}()" if self.function else "the function"
        off = f"is off by {of_norm(self.off)} ({self.measured:.0f} unit roundoffs)" if math.isfinite(self.off) else "gives nothing right"
        alone = self.operation.call == self.shown.call  # else it was given most of it
        return f"on the same inputs as the reference, {name} {off}: " if alone else f"what {name} returns {off}: "


class Calls:
    """Judges the calls of user functions in a part of a run."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.functions, self.readers = observation, observation.functions, readers
        self.operations: dict[int, list[Operation]] = defaultdict(list)
        for operation in observation.operations:
            if operation.call:
                self.operations[operation.call].append(operation)
        self.splits: dict[int, Splits] = {}
        self.entrances = Entrances(observation)
        self.attempts = Attempts()
        self.cancelled: set[Value] = set()  # sums whose terms cancel, and values made from them

    def error(self, operation: Operation, value: Value, *, given: bool = False) -> OwnError | None:
        """The error of `value`, which `operation` made, if it leaves its function and one rounding in the function made the error.

        `given`: the run's inputs, as the precision stores them, explain all other errors. An amplified rounding in an optimizer's step does not
        count, be it by a difference: it is another one in each step, so that it averages out, as the noise of gradients does. Lost numbers are lost
        in each step.
        """
        if operation.base in ops.CONCATENATIONS:
            return self._of_turns(operation, value)
        line = operation.call, operation.name, operation.blamed
        if not self._its_own(operation, value, 0.0 if given else MADE_BY_FUNCTION) or not self.attempts.due(line):
            return None
        splits = self.splits.setdefault(operation.call, Splits(error_in(operation.call)))
        made = Attribution(value, self.operations[operation.call], splits)
        constant = _coarse_addition(made, value)
        cause = self._owner(operation, made, added=constant is None)
        if cause is None or cut_off(cause):
            self.attempts.failed(line)
            return None
        off, limit, unit = value.call_error, self._limit(cause, made), max(effective_roundoff(value), cause.outputs[0].roundoff)
        constant = constant if of_small_numbers(cause) else None
        if off <= limit * (max(unit, COARSE) if of_small_numbers(cause) and constant is None else unit):
            return None
        own = self._described(operation, value, cause, made, off / unit, limit, constant)
        noise = own.made == "a rounding" or (own.made == "a difference" and value.dead < GARBAGE)
        return None if noise and steps(operation) else own

    def _its_own(self, operation: Operation, value: Value, least: float) -> bool:
        """Whether a result leaves its function with an error beyond rounding, of whose square the function made at least the share `least` itself.

        What is only moved or cast has been judged where it was made. A part that is taken of a tensor may have an error that the rest had hidden.
        """
        cancelled = self._cancels(operation, value) or takes_from_bits(operation, value)
        before = max((source.call_error for source in operation.inputs), default=0.0)
        moved = operation.base in ops.MOVING and (operation.base in ops.CASTS or value.call_error < 2 * before)
        if cancelled or moved or value.call_error <= ADDED * effective_roundoff(value):
            return False
        if not self._results(operation).include(value):
            return False
        return value.call_error**2 >= least * value.drift**2 and determined(value)

    def _of_turns(self, operation: Operation, value: Value) -> OwnError | None:
        """The error of what a loop has joined, if one line rounds in each turn. Each part may have so few elements that its error is chance."""
        own, unit = value.call_error**2 >= MADE_BY_FUNCTION * value.drift**2 and determined(value), effective_roundoff(value)
        if not own or operation.in_optimizer or value.call_error <= ADDED * unit or not self._results(operation).include(value):
            return None
        splits = self.splits.setdefault(operation.call, Splits(error_in(operation.call)))
        found = function_loops.judged(operation, value, lambda each: Attribution(each, self.operations[operation.call], splits))
        if found is None or value.call_error <= found.limit * unit:
            return None
        cause, place = self.entrances.of(value, found.cause, value.drift, found.limit * unit), self.functions.get(operation.blamed)
        return OwnError(
            rule=_RULE["a rounding"], operation=cause, measured=value.call_error / unit, limit=found.limit, function=place.name if place else "",
            made="a rounding", shown=operation, off=value.call_error, own=attribution.own_error(cause, cause.outputs[0]),
            turns=found.turns if cause is found.cause and found.turns > 1 else 0,
        )  # fmt: skip

    def _owner(self, operation: Operation, made: Attribution, *, added: bool) -> Operation | None:
        """The op whose line made the error of what `operation` made. None if the user wrote no such line. Nor does rounding to codes count: what it
        loses is added to the number again, and is a small part of it. `added`: leaves out lines with additions that `absorption` judges."""
        cause = made.cause()
        alone = cause is not None and made.of_line(cause) < OWNED and made.difference(cause, self.functions) is None
        if cause is not None and alone and not self._together(operation, made):
            cause = max(made.shares, key=made.shares.__getitem__)  # that line has a part in it, and an earlier one has most
            cause = cause if cause.blamed and made.of_line(cause) >= OWNED else None
        if cause is None or not attribution.written(cause) or takes_from_codes(cause):
            return None
        return None if added and any(each.absorbed is not None and each.line == cause.line for each in made.shares) else cause

    def _described(
        self, operation: Operation, value: Value, cause: Operation, taken: Attribution, roundings: float, limit: float, constant: Operation | None,
    ) -> OwnError:  # fmt: skip
        own, place = attribution.own_error(cause, cause.outputs[0]), self.functions.get(operation.blamed)
        difference = taken.difference(cause, self.functions)
        made: Making = "a rounding"
        if constant is not None:
            difference, made = constant, "a constant"
        elif difference is not None:
            made = "a difference"
        elif not own or own == cause.outputs[0].local:
            made = "the op itself"
        elif of_small_numbers(cause) or taken.subnormal(cause):
            made = "small numbers"
        named, off, all_off = difference or cause, value.call_error, value.drift
        entry = named if made not in ("a difference", "a rounding") else self.entrances.of(value, named, roundings * all_off / off, limit)
        if entry is not named:
            named, made, own = entry, "a rounding", attribution.own_error(entry, entry.outputs[0])
        if entry.call != operation.call:  # it was given that error
            roundings, off = roundings * all_off / off, all_off
        return OwnError(
            rule=_RULE[made], operation=named, measured=roundings, limit=limit,
            function=place.name if place is not None else "", made=made, shown=operation, off=off, own=own,
        )  # fmt: skip

    def _limit(self, cause: Operation, made: Attribution) -> float:
        """How many unit roundoffs the result of a call may be off by. A call that amplifies none of its n roundings is off by √n of them, times the
        limit of any boundary (`FAIL`). It may be off by more if the precision asks for low numbers: sharp scores in a softmax amplify in correct code
        too."""
        if any(reader.base in ops.PRODUCTS and not reader.autocast_left for reader in self.readers.get(cause.outputs[0], ())):
            return ROUNDED
        if causes.casts_wide(cause):
            return ADDED
        unamplified = FAIL * ONE_ROUNDING * math.sqrt(sum(share > 0 for share in made.shares.values()))
        return ROUNDED if asked(made) else min(ROUNDED, max(ADDED, unamplified))

    def _together(self, operation: Operation, made: Attribution) -> bool:
        """Whether all roundings of a call are judged together, by how many they are: if all are the author's, and no loop rounds.

        n turns of a loop make n roundings, if they go one way. Code of the function itself runs again in a loop. An op of a helper is in one if it
        computes with what it has made before. If the helper is called twice, on other numbers, its errors are independent, and √n of them add up
        as those of different lines do.
        """
        call, mine = next((each.call for each in made.shares), 0), self.functions.get(operation.blamed)
        turns = Counter(line for line, _ in itertools.groupby(each.line for each in self.operations[call]))
        runs = Counter((each.line, each.name, each.instruction) for each in self.operations[call])
        shares = (each for each, share in made.shares.items() if share and turns[each.line] > 1)  # a line may call helpers between two ops
        again = [each for each in shares if runs[each.line, each.name, each.instruction] > 1]
        helped = {(each.line, each.name) for each in again if self.functions.get(each.blamed) != mine}
        own = any(self.functions.get(each.blamed) == mine for each in again)
        return not (asked(made) or own or any(_computes_with_its_own(line, name, made) for line, name in helped))

    def stays(self, fact: Fact, value: Value, readers: Readers) -> bool:
        """Exemption: only its own function reads the value after all, or makes nothing wrong of its sums."""
        self.readers = readers
        fair = ADDED if fact.limit >= ROUNDED else 1.0  # what healthy functions reach: 3.8 where the precision asks for low numbers, else 1.0
        unread = dropped_values(self.observation)
        return value.maker is not None and bool(readers.get(value)) and not self._results(value.maker, unread, fair).include(value)

    def _results(self, operation: Operation, unread: Set[Value] = frozenset(), fair: float = 1.0) -> Results:
        return Results(operation, self.operations[operation.call], self.functions, self.readers, unread, fair)

    def _cancels(self, operation: Operation, value: Value) -> bool:
        """Whether a value is a sum whose terms cancel, or is made from one.

        A sum of n numbers of one sign is at least as large as their norm. So its relative error is no larger than theirs, except for lost numbers.
        Its own rounding is that of partial sums, which are as large as the terms, so this counts relative to the terms.
        """
        error, handed = error_in(operation.call), any(source in self.cancelled for source in operation.inputs)
        before = max((error(source) for source in operation.inputs), default=0.0)
        emptied = any(source.zeros and value.norm >= source.norm for source in operation.inputs) and operation.base not in ops.PRODUCTS
        grown = error(value) > 2 * max(before, attribution.own_error(operation, value) * min(1.0, share_left_by_cancellation(operation, value)))
        made = operation.base in ops.REDUCTIONS - ops.SUMS and grown and not emptied
        if handed or made:
            self.cancelled.add(value)
        return handed or made


def outside(cause: Operation, operation: Operation, value: Value, observation: Observation) -> Operation:
    """Returns the op that made the error of a result: `cause`, or an op outside the function if the function is right on the inputs that it gets.

    Where a result is right to `ADDED` unit roundoffs on the inputs of its call, the call amplifies no rounding: the error came with the inputs.
    """
    right = 0 < value.call_error <= ADDED * effective_roundoff(value)
    if not right or not cause.call or cause.call != operation.call:
        return cause
    return Attribution(value, observation.operations).cause(lambda each: each.call != operation.call) or cause


def owns(cause: Operation | None, made: Attribution, functions: Mapping[str, Function]) -> bool:
    """Whether the line of `cause` made most of an error, or the user's lines of its function did. `functions`: the function of each line.

    If neither did, correcting the line changes little: torch's own modules made the error, or many functions together.
    """
    if cause is None or made.of_line(cause) >= OWNED:
        return cause is not None
    theirs = (share for each, share in made.shares.items() if attribution.written(each) and attribution.same_function(each, cause, functions))
    return cause.blamed in functions and sum(theirs) >= MADE_BY_FUNCTION


def _coarse_addition(made: Attribution, value: Value) -> Operation | None:
    """The last op that adds a number with too few bits, among those that most of a value's error passed through. None if the value is as small."""
    if rms(value) < smallest_normal(value):
        return None
    passed = (operation for operation, part in made.through.items() if part >= attribution.TOGETHER and coarse_number(operation) is not None)
    return max(passed, key=attribution.number, default=None)


def coarse_number(operation: Operation) -> tuple[float, float] | None:
    """A Python number that an op adds, of which the format keeps no bit or few, and what it keeps. Only if it is most of the result.

    It is no rounding of a small result: a coefficient of a polynomial is multiplied by large numbers later.
    """
    value = operation.result
    if value is None or operation.base not in ops.SUMS or not value.low or not value.norm:
        return None
    kept, size = formats.of_dtype(value.dtype), rms(value)
    added = ((scalar, kept.round(scalar)) for scalar in operation.scalars if abs(scalar) >= OWNED * size)
    return next(((number, held) for number, held in added if abs(held - number) > ROUNDED * value.roundoff * abs(number)), None)


def _computes_with_its_own(line: tuple[str, str], name: str, made: Attribution) -> bool:
    """Whether an error passed an op of a line, then another line, and then the first op again."""
    here, elsewhere = set[Value](), set[Value]()  # results of the op, and what other lines have made of them
    for operation in sorted(made.through, key=attribution.number):
        if (operation.line, operation.name) == (line, name):
            if not elsewhere.isdisjoint(operation.inputs):
                return True
            here.update(operation.outputs)
        elif not elsewhere.isdisjoint(operation.inputs):
            elsewhere.update(operation.outputs)
        elif not here.isdisjoint(operation.inputs):
            (here if operation.line == line else elsewhere).update(operation.outputs)
    return False


def error_in(call: int) -> Callable[[Value], float]:
    """A function that returns the error of the call's values, and 0 for others."""
    return lambda value: value.call_error if value.maker is not None and value.maker.call == call else 0.0
