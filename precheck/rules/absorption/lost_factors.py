"""Factors of a stored state that are so near to one that its format gives each number back: a decay that never has an effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from precheck.analysis.propagation.provenance import effective_roundoff, percent
from precheck.analysis.training.displacements import INTENDED, UPDATES
from precheck.observe.shadow.op_notes import Absorbed
from precheck.observe.shadow.operations import Operation
from precheck.rules.rule import Candidate


@dataclasses.dataclass(slots=True)
class LostFactors:
    """The factors on one line that were too near to one to change any number of a state. Only the last op is kept, however long the loop is."""

    count: int = 0
    lost: float = 0.0  # what they should have changed together, relative to the state
    last: Operation = dataclasses.field(init=False)

    def add(self, operation: Operation) -> None:
        self.count, self.lost, self.last = self.count + 1, self.lost + abs(1 - operation.scalars[0]), operation

    def candidates(self) -> Iterator[Candidate]:
        """A decay that never has an effect, where the factors should have changed the state by what the format can show. Additions to it may all
        arrive. But nothing is ever forgotten, so in the end the state stands for the whole way and not for the last 1/(1 - s) additions."""
        made, u = self.last.outputs[0], effective_roundoff(self.last.outputs[0])
        if self.count >= UPDATES and self.lost >= INTENDED * u:
            text = (f"{self.count} factors of {self.last.scalars[0]:.6g} changed no element: the numbers of {made.dtype} are at least "
                    f"{percent(u)}% apart, so what was added is never forgotten")  # fmt: skip
            yield Candidate("absorption", self.last, text, self.lost / u, INTENDED)


def without_effect(operation: Operation, absorbed: Absorbed) -> bool:
    """Whether the program multiplies a stored state by a number that is so near to one that the format gives each number back.

    The numbers next to x are at least u·|x| away, so a factor within u/2 of one leaves every number as it is. A step of torch's own optimizers is
    left out: the format of its state is that of the weight.
    """
    if operation.base != "mul" or not (operation.in_place and operation.scalars and absorbed.share == 1.0) or operation.parameter:
        return False
    shipped = operation.in_optimizer and not operation.call
    own = operation.phase != "backward" and not shipped
    return own and 0 < abs(1 - operation.scalars[0]) < effective_roundoff(operation.outputs[0]) / 2
