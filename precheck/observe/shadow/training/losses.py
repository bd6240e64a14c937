"""Records the losses of a watched run with their shadows, and of each backward pass under a loss scale its greatest float16 gradient and the op that
overflowed first. A loss is the scalar at which a backward pass begins.

`backward()` makes ones in the shape of its tensor, and the dispatch mode sees that op. `backward(gradient)` makes none, so such a pass
is not recorded.

The greatest loss scale without overflow is 65504 over the greatest |gradient| of the pass. The gradient is the shadow's, without the scale.
A tensor that carries the loss scale as a factor is a gradient of the scaled loss (`loss_scales`). Activations that are saved or recomputed carry no
factor and do not limit the scale.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from precheck.findings import Loss
from precheck.formats import FP16
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.places.source import shortened
from precheck.observe.shadow.replaying.replay import addressable, tensors_in
from precheck.observe.shadow.training.loss_scales import LossScales
from precheck.observe.shadow.training.step_records import Backward, ScalingEvent
from precheck.observe.shadow.training.undefined_losses import UndefinedLosses

_NEAR = 8  # most Python frames between autograd's and this one; function modes add some
_BEGINS = "_make_grads"  # in torch/autograd/__init__.py
MOST = 4096
"""Losses kept: 0.4 MB as JSON, and more than a plot has columns. In a longer run, each one kept stands for 2, 4, 8, … losses. It is the one
furthest from its reference."""


class Losses:
    """The losses, in the order of the run."""

    def __init__(self, memory: Memory, scales: LossScales) -> None:
        self.memory, self.scales, self.undefined = memory, scales, UndefinedLosses(memory)
        self.found: list[Loss] = []
        self.each = 1  # backward passes that one kept loss stands for
        self.passes = 0
        self.newest: Loss | None = None

    def backward_begins(self, loss: torch.Tensor, describe: Callable[[], Any]) -> bool:
        """At `ones_like(loss)`: records the loss and returns True if a backward pass begins here. `describe()` names the line."""
        if loss.numel() != 1 or not loss.requires_grad or loss.is_complex() or not addressable(loss) or not _by_autograd():
            return False
        where, cell, factor = describe(), self.memory.find(loss), self.scales.of(loss)
        with torch.no_grad():
            shadow = loss.detach() if cell is None else self.memory.view(cell, loss)
            kept = self._keep(where.step, shortened(where.source), factor, *fetched([loss.detach(), shadow]))
        if cell is not None and not math.isfinite(kept.low) and not math.isfinite(kept.reference):
            self.undefined.loss(cell.value, kept.low, where.step)
        return True

    def _keep(self, step: int, source: str, factor: float, low: torch.Tensor, reference: torch.Tensor) -> Loss:
        """Keeps a loss, and returns it. Where one stands for several, it is the one furthest from its reference."""
        by = 1.0 if math.isnan(factor) else factor
        loss = self.newest = Loss(step, float(low) / by, float(reference) / by, source=source)
        if self.passes % self.each == 0:
            self.found.append(loss)
        elif _apart(loss) > _apart(self.found[-1]):
            self.found[-1] = loss
        self.passes += 1
        if len(self.found) > MOST:
            pairs = zip(self.found[::2], [*self.found[1::2], self.found[-1]], strict=False)
            self.found, self.each = [max(pair, key=_apart) for pair in pairs], 2 * self.each
        return loss

    def finish(self) -> list[Loss]:
        """The losses kept, and the newest."""
        newest = [] if self.newest is None or any(each is self.newest for each in self.found[-1:]) else [self.newest]
        return [*self.found, *newest]


def _apart(loss: Loss) -> float:
    """The distance from its reference. Infinite if only one of the two is finite."""
    if math.isfinite(loss.low) != math.isfinite(loss.reference):
        return math.inf
    return abs(loss.low - loss.reference) if math.isfinite(loss.low) else 0.0


def _by_autograd() -> bool:
    """Whether autograd makes these ones, for the beginning of a backward pass."""
    frame: Any = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == _BEGINS:
            return True
        frame = frame.f_back
    return False


class Backwards:
    """Follows one backward pass after another. `now` belongs to the next optimizer step."""

    def __init__(self, memory: Memory, scales: LossScales) -> None:
        self.memory, self.scales = memory, scales
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
                _peak(self.now, cell.value, factor, torch.where(shadow.isfinite(), shadow.abs(), 0).amax())

    def gradient(self, name: str, value: Value, gradient: torch.Tensor) -> None:
        """A parameter's gradient has been accumulated: notes the first one that is not finite, and sums of terms under two scales."""
        mixture = self.scales.mixture(gradient)
        self.mixed += [mixture] if mixture is not None and mixture not in self.mixed else []
        _first_broken(self.now, name, value)

    def done(self) -> None:
        self.now = Backward()


def _peak(now: Backward, value: Value, factor: float, peak: torch.Tensor) -> None:
    """Notes the greatest gradient of a pass, and the op that overflowed."""
    greatest = float(peak) / factor
    if greatest > now.peak and value.maker is not None:
        now.peak, now.at = greatest, value.maker
    beyond = value.beyond / factor
    if value.nonfinite and (now.overflowed is None or now.beyond <= FP16.max < beyond):  # the first, or the first that no scale would prevent
        now.overflowed, now.beyond = value.maker, beyond


def _first_broken(now: Backward, name: str, value: Value) -> None:
    """Notes the first parameter of a pass whose gradient is not finite."""
    if value.nonfinite and not now.parameter:
        now.parameter = name or "a parameter"
