"""Whether an intermediate in a lower format explains what a candidate gives: the reference is run with single results rounded."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.exact import Exact, widened
from precheck.kernels.judged import Judged

LOW = (torch.bfloat16, torch.float16)
ALIKE = 0.6
"""The cosine of two errors from which one explains the other: that of independent ones is 1/8 among 64 elements."""
_MOST = 40
"""Ops of a reference that are rounded one by one."""


class _Lowered(Exact):
    """float64, with the result of one op rounded; of all where `which` is None."""

    def __init__(self, which: int | None, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.which, self.dtype, self.count = which, dtype, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or result.data_ptr() in _addresses(args):
            return result
        self.count += 1
        if self.which in (None, self.count - 1):
            return result.to(self.dtype).to(result.dtype)
        return result


def _addresses(args: tuple[Any, ...]) -> set[int]:
    return {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}


def explains(bench: Bench, judged: Judged, alike: float = ALIKE) -> bool:
    """Whether the error has the direction of one that rounding an op of the reference makes, and its size; `alike`: their cosine, at least."""
    name = judged.fault.subject if judged.fault else "output"
    if judged.outcome is None or judged.reference is None:
        return False
    got, right = judged.outcome.values.get(name), judged.reference.exact.values.get(name)
    if got is None or right is None or not right.is_floating_point() or right.numel() < 32 or got.shape != right.shape:
        return False
    error = (got.double() - right).nan_to_num(posinf=0.0, neginf=0.0)
    gradients = "gradient" in name
    for dtype in LOW:
        which: int | None = None
        for which in (None, *range(_MOST)):
            other, count = _run(bench, judged, which, dtype, gradients)
            if which is not None and which >= count:
                break
            made = other.values.get(name)
            if other.error is not None or made is None or made.shape != right.shape:
                continue
            if _alike(error, (made.double() - right).nan_to_num(posinf=0.0, neginf=0.0), alike):
                return True
    return False


def _run(bench: Bench, judged: Judged, which: int | None, dtype: torch.dtype, gradients: bool) -> tuple[running.Outcome, int]:
    made = bench.make(judged.trial)
    wishes = dataclasses.replace(bench.wishes_of(judged.trial), gradients=bench.wishes.gradients and gradients)
    mode = _Lowered(which, dtype)
    with mode:
        outcome = running.run(bench.reference, bench.example, [widened(each) for each in made.values], made.numbers, wishes, kind="noise")
    return outcome, mode.count


def _alike(error: torch.Tensor, other: torch.Tensor, alike: float) -> bool:
    norms = float(error.norm() * other.norm())
    return norms > 0 and float((error * other).sum()) > alike * norms and float(error.norm()) < 8 * float(other.norm())
