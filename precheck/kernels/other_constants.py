"""Tests whether another constant explains the candidate's result: the reference is run without one that it adds, or with twice that."""

from __future__ import annotations

from typing import Any

import torch

from precheck.kernels.bench import Bench
from precheck.kernels.masks import closer
from precheck.kernels.trial_result import Judged
from precheck.observe.exact import Exact
from precheck.ops import ADDITIONS, base_name

_MOST = 8
"""The most constants of a reference that are changed. Each takes two runs in float64."""
_OTHERS = ((0.0, "without"), (2.0, "with twice"))
"""Factors of a constant, in words: one that smooths is left out, or stands inside a factor of two."""


class _Other(Exact):
    """float64, with one of the constants that are added to a tensor multiplied by a factor."""

    def __init__(self, which: int = -1, factor: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.which, self.factor, self.met = which, factor, list[float]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        added = len(args) > 1 and isinstance(args[0], torch.Tensor) and base_name(func.overloadpacket.__name__) in ADDITIONS
        if added and args[0].is_floating_point() and type(args[1]) in (int, float):
            if len(self.met) == self.which:
                args = (args[0], args[1] * self.factor, *args[2:])
            self.met.append(float(args[1]))
        return super().__torch_dispatch__(func, types, args, kwargs)


def explains(bench: Bench, judged: Judged) -> str:
    """The constant whose absence, or double, gives what the candidate gives, in words, or "".

    A constant that is small beside a sum is hidden by rounding in the example's sizes, and seen where there are few terms. The size shows such an
    error then, and does not cause it: the candidate is another function in every size.
    """
    plain = _Other()
    bench.under(plain, judged.trial)
    for which, constant in enumerate(plain.met[:_MOST]):
        for factor, words in _OTHERS:
            if closer(judged, bench.under(_Other(which, factor), judged.trial)):
                return f"the reference {words} its {constant:g}"
    return ""
