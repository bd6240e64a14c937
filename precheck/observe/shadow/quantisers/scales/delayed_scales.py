"""Measures what delayed scales cost the operands of a run's products. It reads the recipe's notes and records the worst call of each operand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_notes import Late
from precheck.recipes.delays import Delayed
from precheck.torch_support import emulation

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


@dataclasses.dataclass(slots=True)
class Operand:
    """One operand of the products on one line, in all calls so far."""

    place: Operation
    worst: Delayed
    calls: int = 0
    small: int = 0
    large: int = 0


class DelayedScales:
    """Collects the notes of the recipe that computes a run's products."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.operands: dict[tuple[str, str, str, str], Operand] = {}

    def after(self, operation: Operation) -> None:
        """After an op: takes in the recipe's notes on its operands."""
        for told in emulation.delays():
            key = operation.module, operation.blamed, operation.phase, told.kind
            seen = self.operands.setdefault(key, Operand(operation, told))
            seen.calls += 1
            if told.lost > 2 * told.current:
                seen.small += told.grown > 1
                seen.large += told.grown < 1
            if told.lost - told.current > seen.worst.lost - seen.worst.current:
                seen.worst, seen.place = told, operation

    def finish(self) -> None:
        """At the end of the block: records the worst call of each operand."""
        for (_, _, _, kind), seen in self.operands.items():
            if seen.small or seen.large:
                worst = seen.worst
                losses = worst.lost, worst.current, worst.clipped, worst.zeroed, worst.grown
                late = Late(kind, *losses, seen.calls, seen.small, seen.large, worst.history)
                self.mode.record(dataclasses.replace(seen.place, number=self.mode.observation.seen, inputs=(), outputs=(), coded=late))
        self.operands = {}
