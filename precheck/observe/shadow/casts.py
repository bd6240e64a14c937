"""Casts and copies: the reference has what they give already, unless the program means to round.

A round trip on one line is meant, as data are rounded so. One that rounds what it gave a turn before is a store of a state, as on two lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow import measuring
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.stores import made_of

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call



def meant(call: Call, output: torch.Tensor) -> bool:
    """The way back of a round trip on one line, `x.bfloat16().float()`: a rounding that the program means, so the reference rounds too."""
    mode, before, cell = call.mode, call.floats[0], call.cells[0]
    there = None if cell is None else cell.value.maker
    if cell is None or there is None or before.dtype not in mode.low or output.dtype in mode.low or not output.is_floating_point():
        return False
    if call.operation.derived or there.derived or mode.lines.frames.widening(3):
        return False  # autograd's casts, of one forward line all (an autocast LSTM's gradients go down and up there), and autocast's
    if cell.value.wholes_moved >= 2 or cell.value.nonfinite:
        return False  # counts and positions are not rounded on purpose, and Inf is no rounding of anything
    one_line = there.base == "_to_copy" and there.source == call.operation.source and not any(given.low for given in there.inputs)
    if not one_line or _turn_before(there, call.operation):
        return False
    trips, place = mode.trips, (there.module, there.source, tuple(output.shape))
    given = trips.get(place)
    if given is not None and there.inputs and made_of(there.inputs[-1], given):
        trips[place] = cell.value
        return False  # a state that the line rounds turn by turn: that it is stored low is what is asked about
    value = trips[place] = Value(call.operation, tuple(output.shape), measuring.named(output.dtype), 0.0)
    call.operation.outputs = (value,)
    mode.memory.drop(output)
    mode.memory.seed(output, mode.replay.wide(output.dtype), value)  # what is made of it is followed, though nothing is off yet
    return True


def _turn_before(there: Operation, back: Operation) -> bool:
    """Whether a line goes back first, and there only then: a loop that widens the state it stored a turn before, `s = (a * s.float() + x).half()`."""
    return there.instruction > back.instruction


def moved(call: Call, output: torch.Tensor) -> bool:
    """A cast or copy of something with a shadow: the reference has it already. Measured only if it rounds anew."""
    mode, source, cell = call.mode, call.floats[0], call.cells[0]
    same = source.shape == output.shape and source.stride() == output.stride() and source.storage_offset() == 0 == output.storage_offset()
    whole = cell is not None and same and cell.held.numel() == output.numel() == output.untyped_storage().nbytes() // output.element_size()
    if not whole or cell is None or not output.is_floating_point() or mode.replay.wide(output.dtype) != cell.held.dtype:
        return False
    before: Value = call.inputs[0]
    if output.dtype in mode.low and output.dtype != source.dtype:
        value = measuring.fresh(call, output)
        perturbed = None if cell.perturbed is None else mode.memory.perturbed_view(cell, source)
        measuring.cast(call, value, output, mode.memory.view(cell, source), perturbed)
    else:
        value = before
    call.operation.outputs = (value,)
    new = mode.memory.share(output, cell, value)
    new.accumulator = cell.accumulator
    if value is not before and not source.dtype.is_complex:
        mode.accumulation.stored(call, output, value)
    return True
