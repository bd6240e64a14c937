"""Gradients that never came."""

from __future__ import annotations

from precheck.judge.events import Suspect
from precheck.judge.lineage import MOVING
from precheck.observe.shadow.operations import Observation, Operation, Value


def missing(observation: Observation) -> list[Suspect]:
    """missing-gradient: a copy of a parameter made while autograd was off, used where it is on, and no gradient for the parameter.

    A cache of cast weights does that when it is first filled under no_grad (pytorch#65766). A conversion of the model does not: its
    copy is what the parameter is from then on. Nor does a cache of weights that are frozen, as of a model with adapters.
    """
    if not observation.came:
        return []
    copies: dict[Value, Operation] = {}
    found, wanting = [], observation.wanting - observation.came
    if observation.optimized:
        wanting &= observation.optimized  # a weight that nobody steps may want no gradient, whatever its flag says
    for operation in observation.operations:
        read = [value for value in operation.inputs if value in copies]
        if read and operation.base in MOVING:
            copies.update(dict.fromkeys(operation.outputs, copies[read[0]]))  # moved about, which is no use yet
        elif read and operation.phase == "forward" and operation.recording:
            for value in read:
                copy = copies.pop(value)
                if operation.parameter == copy.parameter:
                    continue
                name = observation.parameters.get(copy.parameter, "a parameter")
                text = f"this copy of {name} was made without autograd and is used where gradients are wanted: none reaches {name}"
                found.append(Suspect("missing-gradient", copy, text, 0.0, 1.0))
        elif operation.packet == "_to_copy" and not operation.recording and not operation.converts and operation.parameter in wanting:
            copies.update(dict.fromkeys(operation.outputs, operation))
    return found
