"""Counts the ops of a run, to tell whether two runs of a program took the same branches.

Code may behave differently under low precision: another kernel, another constant, a branch on a dtype. The shadow takes the branches of the
run. So it equals the reference run only if a run in float32 takes them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from precheck.observe.recording.module_hooks import Position

Step = tuple[Any, ...]
"""An op: its module call or "backward", its name, and its numeric arguments."""

_CASTS = frozenset({"aten._to_copy", "aten.to", "aten.detach"})
"""Ops that autocast adds, and ops that do nothing in float32. Up to torch 2.9 its casts are detached in the backward pass. A mode sees `aten.to`
itself only inside of torch.func, and a shadow sees what it is made of."""
_PASSED_BY = frozenset({torch.Tensor, torch.nn.Parameter, torch.dtype, type(None)})
_PYTHON_NUMBERS = frozenset({bool, int, float})
_SCALED = {("backward", "aten.mul")}
"""The op that a loss scale adds: the derivative of its product with the loss, without numeric arguments."""
_FORMATS = {
    value: (name, value < 0) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    for name, value in ((field, getattr(torch.finfo(dtype), field)) for field in ("min", "max", "eps", "tiny"))
}  # fmt: skip
"""Numbers from `torch.finfo`, which differ between formats but have the same meaning."""


class Program:
    """Counts the ops of the model, the loss and the backward pass of a run."""

    def __init__(self, position: Position) -> None:
        self.position, self.steps = position, Counter[Step]()

    def took(self, name: str, args: Iterable[Any], kwargs: dict[str, Any], backward: bool) -> None:
        """Counts an op."""
        if name in _CASTS:
            return
        if backward:
            place = "backward"
        elif self.position.inside:
            place = self.position.call
        else:
            return
        step = [place, name]
        _numbers(args, step)
        if kwargs:
            _numbers(kwargs.values(), step)
        key = tuple(step)
        self.steps[key] = self.steps.get(key, 0) + 1


def alike(low: Counter[Step], other: Counter[Step]) -> bool:
    """Whether a low run consists of the same ops as a float32 run, apart from casts and a loss scale."""
    missing, more = other - low, low - other
    return not missing and more.keys() <= _SCALED


def _numbers(values: Iterable[Any], found: list[Any]) -> None:
    """Appends the numbers among the values to `found`. Lists become tuples."""
    for value in values:
        kind = type(value)
        if kind in _PASSED_BY:
            continue
        if kind in _PYTHON_NUMBERS:
            found.append(_FORMATS.get(value, value))
        elif isinstance(value, (list, tuple)):
            inner: list[Any] = []
            _numbers(value, inner)
            found.append(tuple(inner))
        elif isinstance(value, (bool, int, float)):  # of a class of its own
            found.append(_FORMATS.get(value, value))
