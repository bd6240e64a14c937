"""Casts and copies: the result shares the shadow of its source, unless the program rounds on purpose.

A cast to a low format and back on one line rounds on purpose if it rounds data or makes codes, and then the reference rounds too. What a model
computes is judged like any other number that is stored low. So are a cast that a float32 run does not make (`evidence.imposed`), and one of what the
line gave an iteration before, which is a state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.memory.storages import length
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.probes.stored_states import made_of
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call


def rounds_on_purpose(call: Call, output: torch.Tensor) -> bool:
    """Whether a cast is the way back of `x.bfloat16().float()` on one line. Then the rounding is on purpose and the reference rounds too."""
    mode, before, cell = call.mode, call.floats[0], call.cells[0]
    if output.dtype in mode.low:
        own = _stores_own(call, output)
        mode.wide.stores(output, own)
        call.operation.stores_own = own and call.inputs[-1].maker is None
        return False
    there = None if cell is None else cell.value.maker
    if cell is None or there is None or before.dtype not in mode.low or not output.is_floating_point():
        return False
    if call.operation.derived or there.derived or mode.lines.frames.widening(3):
        return False  # autocast's own casts, and autograd's: an LSTM's gradients under autocast are cast down and up on one forward line
    if cell.value.wholes_moved >= 2 or cell.value.nonfinite or below_normal(cell.value, before.dtype):
        return False  # nobody rounds counts and positions on purpose, and neither Inf nor a number with fewer bits than the format has is a rounding
    if mode.wide.stored.get(before):
        return False
    one_line = there.base == "_to_copy" and there.source == call.operation.source and not any(given.low for given in there.inputs)
    if not one_line or _turn_before(there, call.operation) or call.operation.source in (mode.observation.imposed or ()):
        return False
    trips, place = mode.round_trips, (there.module, there.source, tuple(output.shape))
    given = trips.get(place)
    if given is not None and there.inputs and made_of(there.inputs[-1], given):
        trips[place] = cell.value
        return False  # a state that the line rounds in each iteration: its low storage may be the bug
    mode.observation.meant.add(call.operation.source)
    value = trips[place] = Value(call.operation, tuple(output.shape), dtype_name(output.dtype), 0.0, norm=cell.value.norm)
    call.operation.outputs = (value,)
    mode.memory.drop(output)
    mode.memory.seed(output, mode.replay.wide(output.dtype), value)  # its error is zero, but what follows from it is measured
    return True


def _stores_own(call: Call, output: torch.Tensor) -> bool:
    """Whether an op stores low what a model has computed: in a forward pass, in what autograd follows, in a backward pass or in an optimizer's step.
    So is one number that the program has written down.

    What is computed elsewhere may be data, which are known to a rounding. What is stored in eight bits is a code.
    """
    source, maker = call.floats[-1], call.inputs[-1].maker
    if torch.finfo(output.dtype).bits <= 8 or source.dtype in call.mode.low:
        return False
    within = bool(call.mode.tracker.stack) or source.requires_grad or call.operation.phase in ("backward", "optimizer")
    return call.mode.wide.own(source, within) or (within and maker is not None)


def below_normal(value: Value, low: torch.dtype) -> bool:
    """Whether most of a value is below the format's smallest normal number, where numbers have fewer bits, or become zero. In formats of eight bits
    these are codes, which the rules on quantisers judge."""
    return torch.finfo(low).bits > 8 and 0.0 < value.norm < torch.finfo(low).smallest_normal * math.sqrt(math.prod(value.shape))


def _turn_before(there: Operation, back: Operation) -> bool:
    """Whether a line widens first and rounds afterwards: a loop that reads the state of the iteration before, `s = (a * s.float() + x).half()`."""
    return there.instruction > back.instruction


def shares_shadow(call: Call, output: torch.Tensor) -> bool:
    """Whether an op casts or copies a whole storage that has a shadow. The result shares that shadow, and is measured only if the cast rounds."""
    mode, source, cell = call.mode, call.floats[0], call.cells[0]
    same = source.shape == output.shape and source.stride() == output.stride() and source.storage_offset() == 0 == output.storage_offset()
    whole = cell is not None and same and cell.content.numel() == output.numel() == length(output)
    if not whole or cell is None or not output.is_floating_point() or mode.replay.wide(output.dtype) != cell.content.dtype:
        return False
    before: Value = call.inputs[0]
    if output.dtype in mode.low and output.dtype != source.dtype:
        value = measuring.fresh(call, output)
        perturbed = None if cell.perturbed is None else mode.memory.perturbed_view(cell, source)
        measuring.measure_cast(call, value, output, mode.memory.view(cell, source), perturbed)
        measuring.measure_cast_alone(value, source, output, before)
    else:
        value = before
    call.operation.outputs = (value,)
    new = mode.memory.share(output, cell, value)
    new.accumulator = cell.accumulator
    if value is not before and not source.dtype.is_complex:
        mode.accumulation.stored(call, output, value)
    return True
