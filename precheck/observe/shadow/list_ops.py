"""Ops on lists of tensors, as the foreach and fused forms of torch's optimizers and `clip_grad_norm_` make them.

Such an op stands for one op at each place of its lists. It is recorded as these ops, so that the error of one weight is not blamed on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precheck.observe.shadow.call import Call
from precheck.observe.shadow.replaying.replay import OpCall, floats_in
from precheck.torch_internals import located

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

PREFIXES = ("_foreach_", "_fused_")
"""Of the names of ops that compute the results at one place from what is at that place. A scaler's check of all gradients is not one: it has one
result for all."""


def several(op: OpCall) -> bool:
    """Whether an op has lists with several places."""
    return op.plan.packet.startswith(PREFIXES) and bool(op.args) and isinstance(op.args[0], (list, tuple)) and len(op.args[0]) > 1


def calls(mode: Shadow, op: OpCall) -> list[Call]:
    """The calls that an op on lists stands for, one for each place."""
    found = []
    for each in (_at(op, place) for place in range(len(op.args[0]))):
        floats = floats_in((*each.args, *each.kwargs.values()), [])
        places = located(floats)
        found.append(Call(mode, each, floats, [mode.memory.at(*known) for known in zip(places, floats, strict=True)], places))
    return found


def _at(op: OpCall, place: int) -> OpCall:
    many = len(op.args[0])

    def part(value: Any) -> Any:
        return value[place : place + 1] if isinstance(value, (list, tuple)) and len(value) == many else value

    return op._replace(args=tuple(map(part, op.args)), kwargs={name: part(value) for name, value in op.kwargs.items()})


def results(result: Any, many: int) -> list[Any]:
    """What the op has returned for each of so many places; None for each if it only writes."""
    return [result[place : place + 1] if isinstance(result, (list, tuple)) else None for place in range(many)]
