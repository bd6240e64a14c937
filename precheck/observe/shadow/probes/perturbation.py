"""Perturbed shadows: from a suspicious value on, a second shadow disturbed by 2^-20 shows whether float32 determines the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.probes import draws, flips

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.mode import Shadow

DISTURBED = {torch.float32: 2.0**-20, torch.float64: 2.0**-49}
"""Relative disturbance of a perturbed shadow: sixteen roundings of the reference, so that it is clearly larger than the reference's own rounding."""


def disturbed(mode: Shadow, shadow: torch.Tensor) -> torch.Tensor:
    """A new perturbed shadow: each element of the shadow is changed by `DISTURBED` of itself, up or down at random."""
    real = torch.view_as_real(shadow) if shadow.is_complex() else shadow
    moved = draws.by_signs(mode.noise, real, DISTURBED[mode.replay.reference])
    return torch.view_as_complex(moved) if shadow.is_complex() else moved


def replayed(call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The op's results on the perturbed shadows of its inputs. None if no input has one, or if the op draws other numbers than dropout's mask."""
    if not any(cell is not None and cell.perturbed is not None for cell in call.cells):
        return None
    memory = call.mode.memory
    seen = {id(tensor): tensor if cell is None else memory.perturbed_view(cell, tensor) for tensor, cell in zip(call.floats, call.cells, strict=True)}
    if call.plan.tagged and call.op.draws():
        return draws.dropped(call, outputs, seen[id(call.floats[0])])
    perturbed = call.mode.replay.call(call.reference_op(), lambda tensor: measuring.operand(call, seen, tensor))
    flips.follow_run(call, outputs, perturbed, seen)
    return perturbed


def from_disturbed_inputs(call: Call, place: int) -> torch.Tensor | None:
    """A new perturbed shadow: the op's result on disturbed inputs, so that it shows the op's own condition. None if it cannot be computed."""
    if call.written or not call.floats or call.plan.base in ops.PAYLOADS or place > 0 or (call.plan.tagged and call.op.draws()):
        return None
    operands = {number: disturbed(call.mode, shadow) for number, shadow in call.shadows.items()}
    return call.mode.replay.call(call.reference_op(), lambda tensor: measuring.operand(call, operands, tensor))[0]
