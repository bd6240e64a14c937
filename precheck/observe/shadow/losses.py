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
from precheck.observe.shadow.later import Later
from precheck.observe.shadow.memory import Memory
from precheck.observe.shadow.replay import addressable
from precheck.observe.shadow.scales import Scales
from precheck.observe.shadow.source import shortened

_NEAR = 8  # Python frames between autograd's and here: function modes add some
_BEGINS = "_make_grads"  # of torch/autograd/__init__.py


class Losses:
    """One after the other, in the order of the run."""

    def __init__(self, memory: Memory, scales: Scales, later: Later) -> None:
        self.memory, self.scales, self.later = memory, scales, later
        self.found: list[Loss] = []

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
        self.found.append(Loss(step, float(low) / by, float(reference) / by, source=source))


def _by_autograd() -> bool:
    frame: Any = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == _BEGINS:
            return True
        frame = frame.f_back
    return False
