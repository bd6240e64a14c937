"""Twins: a second shadow of what follows from a suspicious value, disturbed by 2^-20, to tell whether float32 determines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow import flips, measuring

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call


def of(call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The op on the twins of its inputs; None where none has one."""
    if not any(cell is not None and cell.twin is not None for cell in call.cells):
        return None
    memory, replay, args = call.mode.memory, call.mode.replay, call.reference_args()
    seen = {id(tensor): tensor if cell is None else memory.twin_view(cell, tensor) for tensor, cell in zip(call.floats, call.cells, strict=True)}
    twins: list[torch.Tensor] = replay.call(call.func, call.plan, args, call.kwargs, lambda tensor: measuring.among(call, seen, tensor))
    flips.followed(call, outputs, twins, seen)
    return twins


def shaken(call: Call, place: int) -> torch.Tensor | None:
    """A twin's beginning: the result on disturbed inputs, so that the op's own condition shows. None where it cannot be had."""
    if call.written or call.plan.base in ops.PAYLOADS or place > 0:
        return None
    disturbed = {number: call.mode.disturbed(shadow) for number, shadow in call.shadows.items()}
    args, replay = call.reference_args(), call.mode.replay
    twin: torch.Tensor = replay.call(call.func, call.plan, args, call.kwargs, lambda tensor: measuring.among(call, disturbed, tensor))[0]
    return twin
