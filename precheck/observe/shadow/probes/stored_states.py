"""Finds states that are stored in a low format in each iteration of a loop: `state = (a * state.float() + x).to(dtype)`, `slot.copy_(new)`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.cells import Cell
from precheck.observe.shadow.operations import Operation, Value

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.probes.accumulation import Accumulator

BEHIND = 32
"""Values that are searched for the state of the iteration before."""
STORES = 1024
"""The latest stores that are remembered, with samples: 6 MB. The places of a program share them."""

Key = tuple[str, str, tuple[int, ...]]


@dataclasses.dataclass(slots=True)
class Stored:
    """The latest state that a place of the program has stored."""

    value: Value
    samples: tuple[torch.Tensor, torch.Tensor] | None = None  # of the run and of the shadow
    accumulator: Accumulator | None = None


class StoredStates:
    """The latest stores of each place of a program. A place is a module, a line and a shape. It has several where a line stores the states of several
    weights in turn."""

    def __init__(self) -> None:
        self.known: dict[Key, list[Stored]] = {}

    def latest(self, call: Call, value: Value) -> tuple[Stored | None, Stored] | None:
        """The previous and the present store at the place of a cast. None if the cast stores no state that is made from the previous one."""
        operation = call.operation
        if operation.derived or operation.in_optimizer or operation.converts or operation.plain or call.inputs[0].maker is None:
            return None
        place = operation.module, operation.source, value.shape
        stores, now = self.known.pop(place, []), Stored(value)
        origin = _origin(call.inputs[0], [each.value for each in stores])
        before = next((each for each in stores if each.value is origin), None)
        room = max(1, STORES // (len(self.known) + 1))
        self.known[place] = [*(each for each in stores if each is not before), now][-room:]
        if len(self.known) > STORES:
            del self.known[next(iter(self.known))]
        return None if before is None else (before, now)


def from_overwritten(operation: Operation, cell: Cell | None) -> bool:
    """Whether a copy writes something computed from the content that it overwrites."""
    return cell is not None and cell.value.low and len(operation.inputs) == 2 and made_of(operation.inputs[1], cell.value)


def made_of(value: Value, before: Value) -> bool:
    """Whether `value` is computed from `before` by ops that keep the number of elements. On the way it may be taken apart, moved and joined again."""
    return _origin(value, [before]) is not None


def _origin(value: Value, among: list[Value]) -> Value | None:
    """The nearest value among these that `value` is computed from. None if it is computed from none of them."""
    waiting, seen, wanted = [value], {value}, set(among)
    first = min((-1 if each.maker is None else each.maker.number for each in among), default=0)
    while among and waiting and len(seen) < BEHIND:
        held = waiting.pop(0)
        maker = held.maker
        if maker is None or maker.number <= first:
            continue
        for source in maker.inputs:
            if source in wanted:
                return source
            if source not in seen and (maker.base in ops.MOVING or math.prod(source.shape) == math.prod(held.shape)):
                seen.add(source)
                waiting.append(source)
    return None
