"""Limits the memory of a long run: only a window of its operations is kept.

When the window is full, its older half is judged and dropped. The younger half stays, since the judge has to know how values are used later.
Some old operations stay too: those that made values which are alive or read later, and those that caused the errors of such values.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol

from precheck.observe.shadow.memory.cells import Cell, Memory
from precheck.observe.shadow.op_notes import Past
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.probes import partial_writes

WINDOW = 1 << 14
"""From this many operations (16 384, about 16 MB) the older half is judged and dropped, once enough iterations of the loop have followed it."""
ITERATIONS = 4
"""Least number of iterations of the user's loop in the younger half. Results of a step are read in that step or the next, also if two optimizers
take turns."""
LONGEST = 200_000
"""From this many operations (about 200 MB) the older half is dropped anyway: a block may have no recognisable iterations."""
DEPTH = 2
"""Generations of ancestors that are kept unchanged behind a value. A rule that looks at how a term was made looks two ops back."""


class Iteration(IntEnum):
    """The event that marks an iteration of the loop: the greatest of these that occurs in the block."""

    CALL = 0  # call of a root module, without gradients
    BACKWARD = 1
    STEP = 2  # of an optimizer


class Judge(Protocol):
    """Judges operations before they are dropped."""

    def settle(self, observation: Observation) -> None:
        """Judges the operations in `observation.judged`. Those in `observation.ahead` follow them and may be read."""

    def unsettled(self) -> set[Value]:
        """Values that it still needs, dead or alive."""

    def past(self, value: Value) -> Past:
        """The result of a walk back from a value."""

    def origin(self, value: Value) -> Operation | None:
        """The op that caused the value's error."""

    def keep(self, values: set[Value]) -> None:
        """From now on, only these values can be asked about."""


class Window:
    """The kept operations of a run. Without a judge, operations are dropped unjudged, and only at `LONGEST`."""

    def __init__(self, observation: Observation, memory: Memory, judge: Judge | None) -> None:
        self.observation, self.memory, self.judge = observation, memory, judge
        self.kind = Iteration.CALL
        self.iterations: list[int] = []  # for each iteration, how many ops had run at its end
        self.remains: set[Operation] = set()  # kept operations from before the window

    def iterated(self, kind: Iteration) -> bool:
        """After an iteration of the loop: drops old operations if there are enough. Returns whether it did."""
        if kind < self.kind:
            return False
        if kind > self.kind:
            self.kind, self.iterations = kind, []
        self.iterations.append(self.observation.seen)
        count = self._settled() if self.judge is not None and len(self.observation.operations) >= WINDOW else 0
        if count:
            self._close(count)
        return bool(count)

    def grew(self) -> None:
        """After an operation has been added: drops old ones if there are too many."""
        if len(self.observation.operations) > LONGEST:
            self._close(LONGEST // 2)

    def _settled(self) -> int:
        """How many operations to drop: whole iterations, followed by at least `ITERATIONS` iterations and half a window. 0 if it would be too few."""
        operations = self.observation.operations
        for end in reversed(self.iterations[:-ITERATIONS]):
            count = bisect.bisect_right(operations, end, key=lambda operation: operation.number)
            ahead = len(operations) - count
            if ahead >= WINDOW // 2:
                return count if 2 * count >= ahead else 0
        return 0

    def _close(self, count: int) -> None:
        observation = self.observation
        cells = self.memory.alive()
        if self.judge is None:
            observation.forgotten += count
        else:
            self._judged(self.judge, count, cells)
        gone = observation.operations[:count]
        del observation.operations[:count]
        self.iterations = [end for end in self.iterations if end > gone[-1].number]
        self._let_go({*gone, *self.remains}, cells)

    def _judged(self, judge: Judge, count: int, cells: list[Cell]) -> None:
        """Has the oldest operations judged. Never raises, since the user's run is going on."""
        observation = self.observation
        alive = [value for cell in cells for value in partial_writes.present(cell)]
        for value in alive:
            value.alive = True
        observation.closing = count
        try:
            judge.settle(observation)
        except Exception as error:
            observation.forgotten += count
            observation.unjudged = f"{type(error).__name__}: {error}"
        observation.closing = None
        for value in alive:
            value.alive = False

    def _let_go(self, old: set[Operation], cells: list[Cell]) -> None:
        """Cuts the ancestry of operations before the window, so that operations are freed that no live value and no later op needs."""
        reached = {value for cell in cells for value in partial_writes.present(cell)} | self.observation.parameter_gradients
        reached.update(value for operation in self.observation.operations for value in operation.inputs)
        reached |= self.judge.unsettled() if self.judge is not None else set()
        whole: set[Operation] = set()
        edge = (_makers(reached) | set(self._begun(cells))) & old
        for _ in range(DEPTH):
            whole |= edge
            edge = (_makers(value for operation in edge for value in operation.inputs) & old) - whole
        blamed = set(self._remembered(edge, reached | _values(whole | edge))) & old
        blamed |= _makers(value for operation in blamed for value in operation.inputs) & old
        self.remains = whole | edge | blamed
        for operation in old - whole - blamed:
            operation.part_drift, operation.inputs = operation.drift_in, ()
            if operation not in edge:
                operation.outputs = ()
        if self.judge is not None:
            self.judge.keep(reached | _values(self.remains))

    def _begun(self, cells: list[Cell]) -> Iterator[Operation]:
        """The ops at which accumulators began."""
        yield from (cell.accumulator.first for cell in cells if cell.accumulator is not None)
        for operation in self.observation.operations:
            if operation.absorbed is not None and operation.absorbed.first is not None:
                yield operation.absorbed.first

    def _remembered(self, edge: set[Operation], values: set[Value]) -> Iterator[Operation]:
        """Sets the `past` of values that lose their ancestors. Yields the ops that caused errors in them and in `values`."""
        if self.judge is None:
            return
        for value in _values(edge):
            if value.past is None and (value.drift or value.zeros):
                value.past = self.judge.past(value)
        for value in values:
            past = value.past
            found = [self.judge.origin(value), *([past.rounding, past.zeros and past.zeros[1]] if past is not None else [])]
            yield from (operation for operation in found if operation is not None)


def _makers(values: Iterable[Value]) -> set[Operation]:
    return {value.maker for value in values if value.maker is not None}


def _values(operations: set[Operation]) -> set[Value]:
    return set(itertools.chain.from_iterable((*operation.inputs, *operation.outputs) for operation in operations))
