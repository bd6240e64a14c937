"""Records, for a backward pass under a loss scale, its greatest float16 gradient and the op that overflowed first.

The greatest loss scale without overflow is 65504 over the greatest |gradient| of the pass. The gradient is the shadow's, without the scale.
A tensor that carries the loss scale as a factor is a gradient of the scaled loss (`loss_scales`). Activations that are saved or recomputed carry no
factor and do not limit the scale.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from precheck.formats import FP16
from precheck.observe.shadow.comparing.deferred import Deferred
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.replaying.replay import tensors_in
from precheck.observe.shadow.training.loss_scales import Scales
from precheck.observe.shadow.training.step_records import Backward, ScalingEvent


class Backwards:
    """Follows one backward pass after another. `now` belongs to the next optimizer step."""

    def __init__(self, memory: Memory, later: Deferred, scales: Scales) -> None:
        self.memory, self.later, self.scales = memory, later, scales
        self.now, self.mixed = Backward(), list[ScalingEvent]()
        scales.maker = self.written

    def written(self, gradient: torch.Tensor) -> Operation | None:
        """The op of a backward pass of the user that made a gradient, which autograd may have cast or moved since. None if there is none."""
        cell = self.memory.find(gradient)
        maker = None if cell is None else cell.value.maker
        while maker is not None and maker.derived and len(maker.inputs) == 1:
            maker = maker.inputs[0].maker
        return maker if maker is not None and maker.phase == "backward" and not maker.derived else None

    def passed(self, result: Any) -> None:
        """After each op under a loss scale: measures the float16 gradients among its results."""
        for tensor in tensors_in(result):
            if tensor.dtype is not torch.float16 or not tensor.numel() or tensor.layout is not torch.strided:
                continue
            factor = self.scales.of(tensor)
            cell = self.memory.find(tensor) if factor != 1 and not math.isnan(factor) else None
            if cell is not None:
                shadow = self.memory.view(cell, tensor)
                self.later([torch.where(shadow.isfinite(), shadow.abs(), 0).amax()], functools.partial(_peak, self.now, cell.value, factor))

    def gradient(self, name: str, value: Value, gradient: torch.Tensor) -> None:
        """A parameter's gradient has been accumulated: notes the first one that is not finite, and sums of terms under two scales."""
        mixture = self.scales.mixture(gradient)
        self.mixed += [mixture] if mixture is not None and mixture not in self.mixed else []
        self.later.after(_first_broken, self.now, name, value)

    def done(self) -> None:
        self.now = Backward()


def _peak(now: Backward, value: Value, factor: float, peak: torch.Tensor) -> None:
    greatest = float(peak) / factor
    if greatest > now.peak and value.maker is not None:
        now.peak, now.at = greatest, value.maker
    beyond = value.beyond / factor
    if value.nonfinite and (now.overflowed is None or now.beyond <= FP16.max < beyond):  # the first, or the first that no scale would prevent
        now.overflowed, now.beyond = value.maker, beyond


def _first_broken(now: Backward, name: str, value: Value) -> None:
    if value.nonfinite and not now.parameter:
        now.parameter = name or "a parameter"
