"""Says which values of a call of a user function are its results: what it returns, what decides, and sums whose error reaches one of these."""

from __future__ import annotations

from collections.abc import Mapping, Set

from precheck import ops
from precheck.analysis.decisions.branches import at_rest
from precheck.analysis.facts import Readers
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.output_impact import adds_wrong_step, is_end
from precheck.analysis.propagation.provenance import consumers, effective_roundoff
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.analysis.rounding.function_limits import ADDED, ENLARGED, OWNED, ROUNDED, WRONG_GRADIENT
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.places.source import Function


class Results:
    """Looks for results behind what one op has made. `call`: the operations of its call. `unread`: values that the program drops. `fair`: the largest
    error of a wide number that is right, in unit roundoffs."""

    def __init__(
        self, operation: Operation, call: list[Operation], functions: Mapping[str, Function], readers: Readers,
        unread: Set[Value] = frozenset(), fair: float = 1.0,
    ) -> None:  # fmt: skip
        self.operation, self.call, self.functions, self.readers = operation, call, functions, readers
        self.unread, self.fair = unread, fair

    def include(self, value: Value) -> bool:
        """Whether a value leaves its function, or the function adds up its elements to a sum whose error does.

        A value may be joined, cast or moved before it leaves, and a function that its own function calls may compute with it. It does not count if
        its wrong elements are dropped on the way. A sum does not count if the wrong elements are zeros, which should have added almost nothing, or
        if the program drops it. It does if gradients are wrong because of it. What an optimizer computes leaves it as a step. A state is no result,
        since a step may divide one by another.
        """
        stepping = self.operation.in_optimizer
        plainly = value.call_error > ROUNDED * effective_roundoff(value)
        summed = ops.REDUCTIONS - ops.SUMS if value.zeroed < OWNED * value.drift else frozenset()
        walk = Walk([value], NEARBY)
        for held in walk:
            readers = self._reading(held)
            if not readers and held.alive and not stepping:
                return True  # for now: it is asked again when it has been read
            for reader in readers:
                if reader.reads or (_steps(reader, held) if stepping else self._outside(reader)):
                    return True
                wrong = [made for made in reader.outputs if made.call_error > ADDED * effective_roundoff(made)]
                sums = [made for made in wrong if reader.base in summed and made not in self.unread]
                if sums and (self._differentiated(value) or any(self._sum_does_harm(made, decides=plainly) for made in sums)):
                    return True
                inside = not stepping and reader.depth > self.operation.depth
                walk.follow(wrong if inside or reader.base in ops.MOVING else ())
        return False

    def _sum_does_harm(self, total: Value, *, decides: bool) -> bool:
        """Whether a wrong sum, or what is computed from it and wrong as well, leaves the function, is read by Python, or is compared. (`decides`: a
        comparison counts, since more than rounding in low arithmetic decides.) If not, the function has made the sum right again, or has added it
        to numbers beside which its error is small."""
        walk = Walk([total], NEARBY)
        for held in walk:
            readers = self._reading(held)
            decided = decides and any(not (reader.outputs or at_rest(reader)) for reader in readers)
            if decided or any(is_end(reader) or self._outside(reader) for reader in readers):
                return True
            if not readers and (held.alive or not self._kept()):
                return True
            for reader in readers:
                moved = reader.base in ops.MOVING
                walk.follow(made for made in reader.outputs if moved or made.call_error > self._allowed(made))
        return not walk.whole

    def _reading(self, value: Value) -> list[Operation]:
        """The ops of the user's own code, or of an optimizer, that read a value."""
        return list(filter(_user, consumers(value, self.readers)))

    def _differentiated(self, value: Value) -> bool:
        """Whether a gradient is wrong because of a value, or of what its call has made it from. A result may be right beside larger numbers, and its
        derivative wrong. The gradient has at least half of the error of the value. The number that it is computed from has at least an eighth of
        the gradient's: where it has less, the gradients that are added up cancel."""
        walk = Walk([value], NEARBY)
        for held in walk:
            derived = (reader for reader in self.readers.get(held, ()) if reader.phase == "backward" and reader.derived)
            wrong = (each.drift for reader in derived for each in reader.outputs if each.drift >= WRONG_GRADIENT)
            if any(causes.MADE_BY_OP * value.call_error <= off <= ENLARGED * held.call_error for off in wrong):
                return True
            maker = held.maker if held.maker is not None and held.maker.call == self.operation.call else None
            walk.follow(source for source in (maker.inputs if maker is not None else ()) if source.call_error > 0)
        return False

    def _outside(self, reader: Operation) -> bool:
        """Whether an op reads what the function has returned: an op of another call, or of another function that does not run further down the stack.
        One that does may be called by the function, and what it returns shows which."""
        mine = self.operation
        elsewhere = self.functions.get(reader.blamed) != self.functions.get(mine.blamed)
        return reader.call != mine.call or (elsewhere and reader.depth <= mine.depth)

    def _kept(self) -> bool:
        """Whether something that the call has made still exists, or other code has read it. Then what is gone unread was no result of it."""
        mine = self.operation.call
        made = (value for each in self.call for value in each.outputs)
        return any(value.alive or any(reader.call != mine for reader in self.readers.get(value, ())) for value in made)

    def _allowed(self, value: Value) -> float:
        return (ADDED if value.low else self.fair) * effective_roundoff(value)


def _steps(reader: Operation, step: Value) -> bool:
    """Whether an op adds a step to its weight in place, or one without a correct digit to a state. A sum that is larger does not show the error."""
    adds = reader.in_place and bool(reader.parameter) and step is not reader.inputs[0]
    return adds or adds_wrong_step(reader, step)


def _user(reader: Operation) -> bool:
    """Whether a reader is the user's own code or an optimizer: a forward pass, the backward pass of a custom autograd function, or a step."""
    return reader.phase in ("forward", "data", "optimizer") or (reader.phase == "backward" and not reader.derived)
