"""Perturbed shadows: a second shadow of what follows from a suspicious value, disturbed by 2^-20, to tell whether float32 determines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow import draws, flips, measuring

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.mode import Shadow

DISTURBED = {torch.float32: 2.0**-20, torch.float64: 2.0**-49}
"""Relative disturbance of a perturbed shadow: sixteen roundings of the reference, so that what its own rounding does shows plainly."""


def disturbed(mode: Shadow, shadow: torch.Tensor) -> torch.Tensor:
    """A perturbed shadow's beginning: the shadow, each element off by `DISTURBED` of itself, up or down."""
    real = torch.view_as_real(shadow) if shadow.is_complex() else shadow
    size = DISTURBED[mode.replay.reference]
    signs = torch.empty_like(real).bernoulli_(0.5, generator=draws.generator(mode.noise, shadow.device)).mul_(2 * size).add_(1 - size)
    return shadow * (torch.view_as_complex(signs) if shadow.is_complex() else signs)


def of(call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The op on the perturbed shadows of its inputs; None where none has one."""
    if not any(cell is not None and cell.perturbed is not None for cell in call.cells):
        return None
    memory, replay, args = call.mode.memory, call.mode.replay, call.reference_args()
    seen = {id(tensor): tensor if cell is None else memory.perturbed_view(cell, tensor) for tensor, cell in zip(call.floats, call.cells, strict=True)}
    any_perturbed: list[torch.Tensor] = replay.call(call.func, call.plan, args, call.kwargs, lambda tensor: measuring.among(call, seen, tensor))
    flips.followed(call, outputs, any_perturbed, seen)
    return any_perturbed


def shaken(call: Call, place: int) -> torch.Tensor | None:
    """A perturbed shadow's beginning: the result on disturbed inputs, so that the op's own condition shows. None where it cannot be had."""
    if call.written or call.plan.base in ops.PAYLOADS or place > 0:
        return None
    operands = {number: disturbed(call.mode, shadow) for number, shadow in call.shadows.items()}
    args, replay = call.reference_args(), call.mode.replay
    perturbed: torch.Tensor = replay.call(call.func, call.plan, args, call.kwargs, lambda tensor: measuring.among(call, operands, tensor))[0]
    return perturbed
