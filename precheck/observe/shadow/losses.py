"""The losses of a watched run: what each backward pass began at, beside its shadow.

Autograd asks for ones in the form of the tensor that backward() was called on, and that op comes by like any other. A pass that
is given a gradient to begin with (`backward(gradient)`) asks for none, and is not seen.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from precheck.findings import Loss
from precheck.observe.shadow.deferred import Deferred
from precheck.observe.shadow.loss_scales import Scales
from precheck.observe.shadow.memory import Memory
from precheck.observe.shadow.replay import addressable
from precheck.observe.shadow.source import shortened

_NEAR = 8  # Python frames between autograd's and here: function modes add some
_BEGINS = "_make_grads"  # of torch/autograd/__init__.py
MOST = 4096
"""Losses kept: 0.4 MB as JSON, and more than a plot has columns. Of a longer run each stands for 2, 4, 8, … losses, of which it is furthest
from its reference."""


class Losses:
    """One after the other, in the order of the run."""

    def __init__(self, memory: Memory, scales: Scales, later: Deferred) -> None:
        self.memory, self.scales, self.later = memory, scales, later
        self.found: list[Loss] = []
        self.each = 1  # how many backward passes one of these stands for
        self.passes = 0
        self.newest: Loss | None = None

    def asked(self, loss: torch.Tensor, describe: Callable[[], Any]) -> bool:
        """Ones like `loss` are wanted: whether for a backward pass, and not for whatever else. `describe()` says where."""
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
        """Those kept, the newest among them."""
        newest = [] if self.newest is None or any(each is self.newest for each in self.found[-1:]) else [self.newest]
        return [*self.found, *newest]


def _apart(loss: Loss) -> float:
    """How far it is from its reference; what is not finite in one of them only is furthest of all."""
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
