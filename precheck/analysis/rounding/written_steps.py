"""Recognises an optimizer's step, whether torch's `Optimizer` makes it or a loop of the user's own."""

from __future__ import annotations

from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import Operation, Value


def steps(operation: Operation) -> bool:
    """Whether an op is part of a step: an optimizer's, or what is made of gradients outside of autograd."""
    return operation.in_optimizer or (not operation.recording and any(map(gradients_behind, operation.inputs)))


def gradients_behind(value: Value) -> set[Value]:
    """What a backward pass has left of which this value is made."""
    walk, found = Walk([value], NEARBY), set[Value]()
    for source in walk:
        if source.maker is not None and source.maker.phase == "backward":
            found.add(source)
        elif source.maker is not None:
            walk.follow(source.maker.inputs)
    return found


def normalises(operation: Operation) -> bool:
    """Whether a step is divided by its size, element by element. Each keeps its relative error. Small ones weigh more than before.

    Optimizers do so, and so does a loop that has no optimizer: there what is divided and what divides it are made from the same gradient.
    """
    if operation.base != "div" or len(operation.inputs) != 2:
        return False
    if operation.in_optimizer or operation.packet.startswith("_foreach_"):  # only optimizers divide lists
        return operation.inputs[0].shape == operation.inputs[1].shape
    return not operation.recording and not gradients_behind(operation.inputs[0]).isdisjoint(gradients_behind(operation.inputs[1]))
