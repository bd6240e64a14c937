"""Gradients that never came."""

from __future__ import annotations

from collections.abc import Iterable, Set

from precheck.judge.events import Suspect
from precheck.judge.lineage import MOVING
from precheck.observe.shadow.operations import Observation, Operation, Value


class Copies:
    """missing-gradient: a copy of a parameter made while autograd was off, used where it is on, and no gradient for the parameter.

    A cache of cast weights does that when it is first filled under no_grad (pytorch#65766). A conversion of the model does not: its
    copy is what the parameter is from then on. Nor does a cache of weights that are frozen, as of a model with adapters.
    """

    def __init__(self) -> None:
        self.unused: dict[Value, Operation] = {}
        self.used: dict[tuple[int, str], Operation] = {}  # the first copy of each parameter on each line that was

    def follow(self, operations: Iterable[Operation]) -> None:
        """Call it for all operations, in order."""
        for operation in operations:
            read = [value for value in operation.inputs if value in self.unused]
            if read and operation.base in MOVING:
                self.unused.update(dict.fromkeys(operation.outputs, self.unused[read[0]]))  # moved about, which is no use yet
            elif read and operation.phase == "forward" and operation.recording:
                for value in read:
                    copy = self.unused.pop(value)
                    if operation.parameter != copy.parameter:
                        self.used.setdefault((copy.parameter, copy.source), copy)
            elif operation.packet == "_to_copy" and not operation.recording and not operation.converts and operation.parameter:
                self.unused.update(dict.fromkeys(operation.outputs, operation))

    def keep(self, values: Set[Value]) -> None:
        """Only these can be used any more."""
        self.unused = {value: copy for value, copy in self.unused.items() if value in values}

    def missing(self, observation: Observation) -> list[Suspect]:
        """What they come to at the end of the run."""
        if not observation.came:
            return []
        wanting = observation.wanting - observation.came
        if observation.optimized:
            wanting &= observation.optimized  # a weight that nobody steps may want no gradient, whatever its flag says
        found = []
        for (parameter, _), copy in self.used.items():
            if parameter in wanting:
                name = observation.parameters.get(parameter, "a parameter")
                text = f"this copy of {name} was made without autograd and is used where gradients are wanted: none reaches {name}"
                found.append(Suspect("missing-gradient", copy, text, 0.0, 1.0))
        return found
