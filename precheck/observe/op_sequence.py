"""Which ops a run consists of, so that it shows whether two runs of a program went the same way through it.

Code may go another way under low precision: another kernel, another constant, a branch on a dtype. The shadow of a run takes the branches that the
run takes. So it is the reference run only where a run in float32 takes them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from precheck.observe.module_hooks import Position
from precheck.torch_internals import in_backward

Step = tuple[Any, ...]
"""An op: the module call that it belongs to or "backward", its name, and the numbers that it was given."""

_CASTS = frozenset({"aten._to_copy", "aten.detach"})
"""Ops that autocast adds, and ops that do nothing in float32. Up to torch 2.9 its casts are detached in the backward pass."""
_PASSED_BY = frozenset({torch.Tensor, torch.nn.Parameter, torch.dtype, type(None)})
_SCALED = {("backward", "aten.mul")}
"""What a loss scale adds: the derivative of its product with the loss. No number of Python's is among its operands."""
_FORMATS = {
    value: (name, value < 0) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    for name, value in ((field, getattr(torch.finfo(dtype), field)) for field in ("min", "max", "eps", "tiny"))
}  # fmt: skip
"""Numbers that a program asks a format for. They differ between formats and mean the same."""


class Program:
    """Counts the ops of model, loss and backward pass of a run."""

    def __init__(self, position: Position) -> None:
        self.position, self.steps = position, Counter[Step]()

    def took(self, name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
        """An op ran."""
        if name in _CASTS:
            return
        if in_backward():
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
    """Whether a run under low precision took the steps of a run in float32, apart from casts and a loss scale."""
    missing, more = other - low, low - other
    return not missing and more.keys() <= _SCALED


def _numbers(values: Iterable[Any], found: list[Any]) -> None:
    """Adds the numbers among the values, of lists as tuples."""
    for value in values:
        kind = type(value)
        if kind in _PASSED_BY:
            continue
        if isinstance(value, (list, tuple)):
            inner: list[Any] = []
            _numbers(value, inner)
            found.append(tuple(inner))
        elif isinstance(value, (bool, int, float)):
            found.append(_FORMATS.get(value, value))
