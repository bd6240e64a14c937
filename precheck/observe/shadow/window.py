"""How much of a long run is kept: a window of its operations.

The older half of a full window is judged and let go. The younger half stays, as the judge asks what came of a value. Of what is let go the
operations remain that still matter: those that made what is alive or is still to be read, and those that are blamed for its errors.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Protocol

from precheck.observe.shadow import partial_writes
from precheck.observe.shadow.deferred import Deferred
from precheck.observe.shadow.memory import Cell, Memory
from precheck.observe.shadow.operations import Observation, Operation, Past, Value

WINDOW = 1 << 14
"""Operations (16 384, about 16 MB) from which the older half is judged and let go, once enough turns of the loop lie behind it."""
TURNS = 4
"""Turns of the user's loop that the younger half holds at least. What a step makes is read in that step or the next, also by two optimizers that
take turns."""
LONGEST = 200_000
"""Operations, about 200 MB, after which the older half goes wherever the loop is: a block may have no turns that can be told."""
DEPTH = 2
"""Generations of ancestors that stay as they are behind a value: a rule that looks at how a term was made looks two ops back."""


class Turn(IntEnum):
    """What a turn of the loop is told by: the greatest of these that the block has."""

    CALL = 0  # of a module by no other module, without gradients
    BACKWARD = 1
    STEP = 2  # of an optimizer


class Judge(Protocol):
    """Who judges operations before they are let go."""

    def settle(self, observation: Observation) -> None:
        """Judges `observation.judged`; what follows them, `observation.ahead`, is there to be looked at."""

    def unsettled(self) -> set[Value]:
        """Values, dead or alive, that it has not done with."""

    def past(self, value: Value) -> Past:
        """What a walk back from a value finds."""

    def origin(self, value: Value) -> Operation | None:
        """The op that brought its error in."""

    def keep(self, values: set[Value]) -> None:
        """Only these can be asked about any more."""


class Window:
    """The operations of a run that are kept. Without a judge they are let go unjudged, and only at `LONGEST`."""

    def __init__(self, observation: Observation, memory: Memory, later: Deferred, judge: Judge | None) -> None:
        self.observation, self.memory, self.later, self.judge = observation, memory, later, judge
        self.kind = Turn.CALL
        self.turns: list[int] = []  # how many ops had run at the end of each
        self.remains: set[Operation] = set()  # operations from before the window

    def turned(self, kind: Turn) -> bool:
        """The loop has made a turn; whether operations were let go."""
        if kind < self.kind:
            return False
        if kind > self.kind:
            self.kind, self.turns = kind, []
        self.turns.append(self.observation.seen)
        count = self._settled() if self.judge is not None and len(self.observation.operations) >= WINDOW else 0
        if count:
            self._close(count)
        return bool(count)

    def grew(self) -> None:
        """An operation has been added."""
        if len(self.observation.operations) > LONGEST:
            self._close(LONGEST // 2)

    def _settled(self) -> int:
        """How many operations to let go: whole turns, with at least `TURNS` of them and half a window behind. 0 where most would have to stay."""
        operations = self.observation.operations
        for end in reversed(self.turns[:-TURNS]):
            count = bisect.bisect_right(operations, end, key=lambda operation: operation.number)
            ahead = len(operations) - count
            if ahead >= WINDOW // 2:
                return count if 2 * count >= ahead else 0
        return 0

    def _close(self, count: int) -> None:
        observation = self.observation
        self.later.flush()
        cells = self.memory.alive()
        if self.judge is None:
            observation.forgotten += count
        else:
            self._judged(self.judge, count, cells)
        gone = observation.operations[:count]
        del observation.operations[:count]
        self.turns = [end for end in self.turns if end > gone[-1].number]
        self._let_go({*gone, *self.remains}, cells)

    def _judged(self, judge: Judge, count: int, cells: list[Cell]) -> None:
        """Has the oldest operations judged. Raises nothing: it is in the middle of the user's run."""
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
        """Cuts the lineage of all that lies behind the window: what no live value and no later op hangs on is then free."""
        reached = {value for cell in cells for value in partial_writes.present(cell)} | {value for _, value, _ in self.observation.gradients.values()}
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
            operation.parts, operation.inputs = operation.drift_in, ()
            if operation not in edge:
                operation.outputs = ()
        if self.judge is not None:
            self.judge.keep(reached | _values(self.remains))

    def _begun(self, cells: list[Cell]) -> Iterator[Operation]:
        """The ops that accumulators began at."""
        yield from (cell.accumulator.first for cell in cells if cell.accumulator is not None)
        for operation in self.observation.operations:
            if operation.absorbed is not None and operation.absorbed.first is not None:
                yield operation.absorbed.first

    def _remembered(self, edge: set[Operation], values: set[Value]) -> Iterator[Operation]:
        """Writes down the past of what loses its ancestors; the ops that are blamed for errors in it and in `values`."""
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
