"""Gradients that never came."""

from __future__ import annotations

from precheck.judge.events import Suspect
from precheck.observe.operations import Observation, Value


def missing(observation: Observation) -> list[Suspect]:
    """missing-gradient: a copy of a parameter made while autograd was off, used where it is on, and no gradient for the parameter.

    A cache of cast weights does that when it is first filled under no_grad (pytorch#65766).
    """
    if not observation.came:
        return []
    copies: dict[Value, int] = {}
    found = []
    for operation in observation.operations:
        if operation.phase == "forward" and operation.recording:
            for value in operation.inputs:
                number = copies.pop(value, 0)
                if number and value.maker is not None:
                    name = observation.parameters.get(number, "a parameter")
                    text = f"this copy of {name} was made without autograd and is used where gradients are wanted: none reaches {name}"
                    found.append(Suspect("missing-gradient", value.maker, text, 0.0, 1.0))
        elif operation.packet == "_to_copy" and operation.parameter and operation.parameter not in observation.came:
            copies.update(dict.fromkeys(operation.outputs, operation.parameter))
    return found
