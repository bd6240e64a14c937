"""Gives random numbers in a low format their shadows, and counts what the low format does to distributions.

A uniform draw has steps of 2^-24 in float32, and steps of the format's spacing in a low format. If it rounds to the end of the range, torch returns
the beginning. So one in 512 of bfloat16's numbers is zero (one in 256 up to torch 2.11), and one in 16 million of float32's. The shadow is a random
number among those that round to the run's, drawn from a generator of its own. The difference is judged like any rounding: added to data it is
noise, but the logarithm of the low draw has no tail.

Exponential and log-normal numbers are above zero, so a zero is a rounded smaller number. Half of the numbers that round to zero lie below a quarter
of the smallest number of the format. The shadow is that quarter, since the exact number is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import formats, ops
from precheck.observe.shadow.memory.stable_ids import is_parameter
from precheck.observe.shadow.op_notes import Skew, Tail
from precheck.observe.shadow.replaying.replay import LOW

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

NEAR = 4
"""Greatest number of ops between a draw and its logarithm: 1 - u, a scale, a cast."""
GRAINED = ops.SUMS | ops.SCALING | ops.MOVING | ops.CASTS | ops.GUARDS | ops.UNROUNDED | ops.SINGULAR | ops.ROOTS
"""Ops after which two draws are still as many different numbers as before, unless they round to one. A squashing function is none of them: tanh has a
slope of 1 - tanh², so it takes all draws beyond some size to its bound by its own rounding. A tail that ends there was not cut off by the draw."""
ROUNDINGS = 8.0
"""A number is missing in the run, and not merely rounded, if it lies this many unit roundoffs beyond the run's greatest."""


def generator(known: dict[torch.device, torch.Generator], device: torch.device) -> torch.Generator:
    """A generator for the shadow's own random numbers, so that the user's generator is not touched."""
    if device not in known:
        known[device] = torch.Generator(device).manual_seed(0)
    return known[device]


def by_signs(known: dict[torch.device, torch.Generator], tensor: torch.Tensor, size: float) -> torch.Tensor:
    """The tensor with each element changed by `size` of itself, up or down at random."""
    return tensor * torch.empty_like(tensor).bernoulli_(0.5, generator=generator(known, tensor.device)).mul_(2 * size).add_(1 - size)


def dropped(call: Call, outputs: list[torch.Tensor], operand: torch.Tensor | None) -> list[torch.Tensor] | None:
    """What dropout makes of `operand` with the run's mask, and the mask. None for other draws: repeated, they would take numbers of the user's."""
    if call.plan.packet != "native_dropout" or len(outputs) != 2 or operand is None:
        return None
    chance = call.op.argument("p")
    return [operand * outputs[1] * (1 / (1 - chance) if chance < 1 else 0.0), outputs[1]]


def refined(call: Call, output: torch.Tensor) -> torch.Tensor | None:
    """The shadow of a draw that is uniform or positive. None for other draws and for weights, whose drawn values count as exact."""
    if output.dtype not in LOW or is_parameter(output) or output.requires_grad or call.operation.parameter:
        return None
    if call.plan.base in ops.POSITIVE:
        return _above_zero(output, output.to(call.mode.replay.wide(output.dtype)))
    return _within_cells(call, output) if call.plan.base in ops.UNIFORM else None


def _above_zero(output: torch.Tensor, shadow: torch.Tensor) -> torch.Tensor:
    return torch.where(shadow == 0, formats.of_dtype(output.dtype).min_subnormal / 4, shadow)


def _within_cells(call: Call, output: torch.Tensor) -> torch.Tensor:
    """Random numbers that the low format rounds to the run's numbers."""
    mode, wide = call.mode, call.mode.replay.wide(output.dtype)
    low, high = (_bound(call, "from", 0.0), _bound(call, "to", 1.0)) if call.plan.base == "uniform" else (0.0, 1.0)
    drawn = output.to(wide)
    spread = torch.empty_like(drawn).uniform_(generator=generator(mode.noise, drawn.device))
    spacing = torch.finfo(output.dtype).eps * torch.exp2(drawn.abs().log2().floor()).clamp_min(torch.finfo(output.dtype).tiny)
    shadow = drawn + (spread - 0.5) * spacing
    last = drawn + spacing >= high  # the last number stands for all up to the end of the range
    shadow = torch.where(last, drawn - spacing / 2 + (high - drawn + spacing / 2) * spread, shadow).clamp(low, high)
    ends = drawn == drawn.new_tensor(low).to(output.dtype).to(wide)
    return torch.where(ends, low + (high - low) * torch.finfo(output.dtype).eps / 4 * spread, shadow)


def _bound(call: Call, name: str, default: float) -> float:
    value = call.op.argument(name)
    return default if value is None else float(value)


def count_impossible(call: Call, drawn: torch.Tensor) -> None:
    """Counts the indices drawn by `multinomial` that have probability zero."""
    chances = call.floats[0]
    call.operation.impossible = int((chances.gather(-1, drawn) == 0).sum()), drawn.numel()


def note_tail(call: Call, output: torch.Tensor, shadow: torch.Tensor) -> None:
    """Counts the reference's numbers in a tail that lie beyond the run's greatest number."""
    operation = call.operation
    if operation.base not in ops.SINGULAR or len(operation.inputs) != 1:
        return
    origin, steps = operation.inputs[0].maker, 0
    while origin is not None and origin.base not in ops.UNIFORM and steps < NEAR:
        passed = len(origin.inputs) == 1 and origin.base in GRAINED
        origin, steps = origin.inputs[0].maker if passed else None, steps + 1
    if origin is None or origin.base not in ops.UNIFORM or not operation.inputs[0].roundoff:
        return
    run, wide = output.to(shadow.dtype), torch.where(shadow.isfinite(), shadow, 0.0)
    end = float(torch.where(run.isfinite(), run, 0.0).abs().max()) if run.numel() else 0.0
    beyond = wide.abs() > end * (1 + ROUNDINGS * operation.inputs[0].roundoff)
    operation.tail = Tail(int(beyond.sum()), run.numel(), end, float(wide.abs().max()), origin) if run.numel() else None


def note_skew(call: Call) -> None:
    """Measures the distribution of a sampler that uses `searchsorted` on a cumulative sum, against the reference's.

    A uniform number falls into a step with a probability equal to its width. The total variation distance of two such samplers is half the sum of
    the differences of widths. It is the least probability of a different outcome. If the sum falls short of its end, the gap belongs to the index
    past it.
    """
    if call.plan.packet != "searchsorted" or not call.inputs[0].drift:
        return
    summed, steps = call.inputs[0].maker, 0
    while summed is not None and summed.base != "cumsum" and steps < NEAR:
        summed, steps = summed.drifting.maker if summed.drifting is not None else None, steps + 1
    sums = call.floats[0]
    if summed is None or summed.base != "cumsum" or sums is not call.args[0] or not sums.numel():
        return
    wide = call.shadows[id(sums)]
    run = sums.to(wide.dtype)
    begin, end = torch.zeros_like(wide[..., :1]), wide[..., -1:].abs().clamp_min(torch.finfo(wide.dtype).tiny)
    mine, theirs = (torch.diff(each, dim=-1, prepend=begin) for each in (run, wide))
    apart = ((mine - theirs).abs().sum(-1) + (run - wide)[..., -1].abs()) / (2 * end[..., 0])
    empty = int(((mine <= 0) & (theirs > 0)).sum())
    call.operation.skew = Skew(float(apart.mean()), empty, sums.numel(), summed, call.inputs[0].roundoff)
