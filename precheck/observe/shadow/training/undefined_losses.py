"""Finds a loss, a gradient, a choice or a result that is lost to Inf or NaN in the reference too, and the op that makes it of finite numbers.

No format is at fault there, and a comparison with the reference has nothing to say: Inf and NaN are equal on both sides. But all that follows from
such a loss is lost. `made` looks at functions that have a pole, and at exponentials: these alone make Inf or NaN of ordinary numbers. It looks at the
result first, and at the operands only if that is not finite. A tensor of another device is not looked at, since that would wait for all of its work.

Of kept results only those count which come of an exponential. log 0 is -Inf and meant so. An exponential of finite numbers is never infinite,
so that Inf is beyond the format of the reference. A choice of the largest is lost if it reads NaN: torch takes NaN for the largest number of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.training.step_records import Undefined
from precheck.torch_internals import no_dispatch

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.memory.cells import Cell, Memory
    from precheck.observe.shadow.operations import Operation, Value

_BREAKS = ops.POLES | ops.EXPONENTIALS
_MOST = 4096  # ops that a search for the origin visits


class UndefinedLosses:
    """The first loss or gradient that is not finite on either side."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.first: Undefined | None = None
        self.beyond = False  # whether an exponential was beyond the reference's format
        self.nan_given = False  # whether an op read NaN from outside the block

    def made(self, call: Call, output: torch.Tensor, shadow: torch.Tensor) -> None:
        """Notes on an op that it makes Inf or NaN of finite numbers, in the run and in the reference."""
        operation = call.operation
        if call.plan.base not in _BREAKS or operation.in_optimizer or output.device.type != "cpu" or self.first is not None:
            return
        if not _finite(output) and not _finite(shadow) and all(map(_finite, call.floats)):
            operation.breaks = True
            self.beyond |= call.plan.base in ops.EXPONENTIALS

    def given(self, call: Call, value: Value, output: torch.Tensor) -> None:
        """Notes on an op that it reads NaN from outside the block. `value`: that of its output, which is compared already."""
        if value.unheld and self.first is None:
            read = (each for each, source in zip(call.floats, call.inputs, strict=True) if source.maker is None and each is not output)
            call.operation.given_nan = any(map(_lost, read))
            self.nan_given |= call.operation.given_nan

    def loss(self, value: Value, low: float, step: int) -> None:
        """A backward pass begins at a loss that is Inf or NaN, in the reference too."""
        self._reached("loss", value, low != low, step)

    def gradient(self, name: str, value: Value, gradient: torch.Tensor, step: int) -> None:
        """A parameter's gradient has been accumulated. Called from a hook, where ops of precheck's own would count as the program's."""
        if self.first is not None or gradient.device.type != "cpu" or gradient.layout is not torch.strided:
            return
        with no_dispatch():
            cell = None if _finite(gradient) else self.memory.find(gradient)
            if cell is not None and not _finite(self.memory.view(cell, gradient)):
                self._reached(f"gradient of {name or 'a parameter'}", value, _lost(gradient), step)

    def chosen(self, call: Call) -> None:
        """The largest or smallest of some numbers is chosen, and one of them is NaN, in the reference too."""
        given = call.floats[0] if call.floats else None
        if self.first is None and given is not None and given.device.type == "cpu" and _lost(given) and _lost(call.shadow_of(given)):
            self._reached(f"number that {call.plan.base} chooses by", call.inputs[0], True, call.operation.step)

    def results(self, kept: Iterable[Cell]) -> None:
        """What is kept at the end of the block."""
        for cell in kept if (self.beyond or self.nan_given) and self.first is None else ():
            maker = cell.value.maker
            origin = None if maker is None or maker.phase == "backward" or _finite(cell.content) else _origin(maker, through=False)
            if origin is not None and (origin.given_nan or origin.base in ops.EXPONENTIALS):
                self.first = Undefined(origin, "result", bool(cell.content.isnan().any()), origin.step)
                return

    def _reached(self, what: str, value: Value, nan: bool, step: int) -> None:
        if self.first is None and value.maker is not None:
            origin = _origin(value.maker, through=False) or _origin(value.maker, through=True)
            self.first = Undefined(origin or value.maker, what, nan, step)


def _finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite. Inf and NaN always reach a sum, which takes a third of the time, and may be beyond the format itself."""
    if tensor.dtype in (torch.float32, torch.float64) and math.isfinite(float(tensor.detach().sum())):
        return True
    return not tensor.is_floating_point() or bool(tensor.detach().isfinite().all())


def _lost(tensor: torch.Tensor) -> bool:
    return bool(tensor.detach().isnan().any())


def _origin(last: Operation, through: bool) -> Operation | None:
    """The nearest op before that made Inf or NaN of finite numbers, or was given NaN. `through`: also behind ops that leave numbers
    out, as `where` does."""
    reached, waiting = {last}, [last]
    for operation in waiting:
        if operation.breaks or operation.given_nan:
            return operation
        if operation.base in ops.CHOOSING_OR_FILLING and not through:
            continue
        for maker in (source.maker for source in operation.inputs):
            if maker is not None and maker not in reached and len(reached) < _MOST:
                reached.add(maker)
                waiting.append(maker)
    return None
