"""Records the losses of a watched run, and their shadows. A loss is the scalar at which a backward pass begins.

`backward()` makes ones in the shape of its tensor, and the dispatch mode sees that op. `backward(gradient)` makes none, so such a pass
is not recorded.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from precheck.findings import Loss
from precheck.observe.shadow.comparing.deferred import Deferred
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.places.source import shortened
from precheck.observe.shadow.replaying.replay import addressable
from precheck.observe.shadow.training.loss_scales import Scales

_NEAR = 8  # most Python frames between autograd's and this one; function modes add some
_BEGINS = "_make_grads"  # in torch/autograd/__init__.py
MOST = 4096
"""Losses kept: 0.4 MB as JSON, and more than a plot has columns. In a longer run, each one kept stands for 2, 4, 8, … losses. It is the one
furthest from its reference."""


class Losses:
    """The losses, in the order of the run."""

    def __init__(self, memory: Memory, scales: Scales, later: Deferred) -> None:
        self.memory, self.scales, self.later = memory, scales, later
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
            self.later([loss.detach(), shadow], functools.partial(self._keep, where.step, shortened(where.source), factor))
        return True

    def _keep(self, step: int, source: str, factor: float, low: torch.Tensor, reference: torch.Tensor) -> None:
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
    frame: Any = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == _BEGINS:
            return True
        frame = frame.f_back
    return False
