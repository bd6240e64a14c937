"""Whether an intermediate in a lower format explains what a candidate gives: the reference is run with single results rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from precheck import ops
from precheck.kernels import masks, running
from precheck.kernels.bench import Bench
from precheck.kernels.exact import Exact, widened, written
from precheck.kernels.trial_result import Judged
from precheck.ops import base_name

LOW = (torch.bfloat16, torch.float16)
SHARE = 0.8
"""The share of a squared error from which it is explained. Errors of as many ops as an eighth of the elements explain an eighth by chance."""
TIMES = 2.0
"""How often the error of one op may count, at most. It counts once where the candidate rounds the very same; what two ops before it round moves it by
about as much again."""
_MOST = 24
"""Ops of a reference that are rounded one by one."""


class _Lowered(Exact):
    """float64, with the result of one op rounded."""

    def __init__(self, which: int, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.which, self.dtype, self.count = which, dtype, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or result.data_ptr() in _addresses(args):
            return result
        self.count += 1
        if self.which == self.count - 1:
            return result.to(self.dtype).to(result.dtype)
        return result


class _Cut(Exact):
    """float64, with whole numbers found in another way than the reference's."""

    def __init__(self, other: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.other, self.changed = other, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        row = ops.REGISTRY.get(base_name(func.overloadpacket.__name__))
        if row is not None and row.kind is ops.Kind.ROUNDING and len(args) == 1 and not kwargs and not written(func):
            self.changed = True
            return self.other(widened(args[0]))
        return super().__torch_dispatch__(func, types, args, kwargs)


STEPPED = 1 / 16
"""Share of a mean square error that may be left: where what is cut is next to a whole number, float32 may be on its other side."""
CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cut off": torch.trunc, "rounded down": torch.floor, "rounded up": torch.ceil, "rounded to nearest": torch.round,
    "half a step rounded up": lambda x: (x + 0.5).floor(), "half a step rounded away from 0": lambda x: (x.abs() + 0.5).floor().copysign(x),
}  # fmt: skip
"""Ways to find a whole number."""


def otherwise(bench: Bench, judged: Judged) -> str:
    """The way of finding whole numbers that explains what a candidate gives, in words; "" where none does."""
    if judged.outcome is None or judged.reference is None:
        return ""
    made, wishes = bench.make(judged.trial), dataclasses.replace(bench.wishes_of(judged.trial), gradients=False)
    for words, other in CUTS.items():
        mode = _Cut(other)
        with mode:
            outcome = running.run(bench.reference, bench.example, [widened(each) for each in made.values], made.numbers, wishes, kind="noise")
        if not mode.changed:
            return ""
        if outcome.error is None and masks.closer(judged, outcome, judged.reference.exact, STEPPED):
            return words
    return ""


def _addresses(args: tuple[Any, ...]) -> set[int]:
    return {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}


def explains(bench: Bench, judged: Judged) -> bool:
    """Whether the error is a sum of those that rounding single ops of the reference makes."""
    name = judged.fault.subject if judged.fault else "output"
    if judged.outcome is None or judged.reference is None:
        return False
    got, right = judged.outcome.values.get(name), judged.reference.exact.values.get(name)
    if got is None or right is None or not right.is_floating_point() or right.numel() < 32 or got.shape != right.shape:
        return False
    error = _finite(got.double() - right)
    return any(_share(error, _errors(bench, judged, name, right, dtype)) > SHARE for dtype in LOW)


def _errors(bench: Bench, judged: Judged, name: str, right: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """One for each op whose rounding moves the result, up to one for every eight elements."""
    found: list[torch.Tensor] = []
    for which in range(_MOST):
        other, count = _run(bench, judged, which, dtype, "gradient" in name)
        if which >= count or len(found) * 8 >= right.numel():
            break
        made = other.values.get(name)
        if other.error is None and made is not None and made.shape == right.shape and bool((made != right).any()):
            found.append(_finite(made.double() - right))
    return found


def _share(error: torch.Tensor, others: list[torch.Tensor]) -> float:
    """Of its square, what a combination of the others explains; without those of which it takes more than rounding makes."""
    norm, left = float(error.square().sum()), others
    while left and norm:
        sizes = torch.stack([each.norm() for each in left]).clamp(min=1e-300)
        columns = torch.stack([each.reshape(-1) for each in left], 1) / sizes
        weights = torch.linalg.lstsq(columns, error.reshape(-1, 1)).solution
        fair = weights.flatten().abs() <= TIMES * sizes
        if bool(fair.all()):
            return 1 - float((columns @ weights - error.reshape(-1, 1)).square().sum()) / norm
        left = [each for each, kept in zip(left, fair.tolist(), strict=True) if kept]
    return 0.0


def _finite(error: torch.Tensor) -> torch.Tensor:
    return error.nan_to_num(posinf=0.0, neginf=0.0)


def _run(bench: Bench, judged: Judged, which: int, dtype: torch.dtype, gradients: bool) -> tuple[running.Outcome, int]:
    made = bench.make(judged.trial)
    wishes = dataclasses.replace(bench.wishes_of(judged.trial), gradients=bench.wishes.gradients and gradients)
    mode = _Lowered(which, dtype)
    with mode:
        outcome = running.run(bench.reference, bench.example, [widened(each) for each in made.values], made.numbers, wishes, kind="noise")
    return outcome, mode.count
