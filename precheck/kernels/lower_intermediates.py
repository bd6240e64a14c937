"""Tests whether an intermediate in a lower format explains the candidate's result: the reference is run with single results rounded."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck import ops
from precheck.kernels import masks, reference_error
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact, widened, written
from precheck.ops import base_name

LOW = (torch.bfloat16, torch.float16)
SHARE = 0.8
"""Share of a squared error from which it is explained. Errors of n ops explain n / elements of it by chance, at most one eighth here."""
TIMES = 2.0
"""The largest weight of one op's error. It is one if the candidate rounds the same value, and roundings of two ops before it may add about as
much."""
_NEAR = 2.0**-6
"""Share of an error that may be left beside a tie. The rounding of what is stored is far below the step from one side to the other."""
_MOST = 24
"""Ops of a reference that are rounded one by one."""


class _Lowered(Exact):
    """float64, with the result of one op rounded to a lower format."""

    def __init__(self, which: int, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.which, self.dtype, self.count = which, dtype, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        return tuple(self._lower(each, args) for each in result) if isinstance(result, tuple) else self._lower(result, args)

    def _lower(self, result: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or result.data_ptr() in _addresses(args):
            return result
        self.count += 1
        if self.which == self.count - 1:
            return result.to(self.dtype).to(result.dtype)
        return result


class _Cut(Exact):
    """float64, with another way of rounding to integers."""

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
"""Share of a mean square error that may be left. Close to an integer, float32 may lie on its other side, and a sum of several has more sides."""
BESIDE = 2.0**-21
"""How far two roundings of float32 may move what is rounded to an integer. The largest number of a row, divided by its scale, is one up to that."""
CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cut off": torch.trunc, "rounded down": torch.floor, "rounded up": torch.ceil, "rounded to nearest": torch.round,
    "half a step rounded up": lambda x: (x + 0.5).floor(), "half a step rounded away from 0": lambda x: (x.abs() + 0.5).floor().copysign(x),
}  # fmt: skip
"""Ways of rounding to integers."""


def otherwise(bench: Bench, judged: Judged) -> str:
    """The way of rounding to integers that explains the candidate's result, in words, or ""."""
    if judged.outcome is None:
        return ""
    for steps, (words, other) in itertools.product(((0.0,), (0.0, BESIDE, -BESIDE)), CUTS.items()):  # an exact explanation comes first
        made = []
        for step in steps:
            mode = _Cut(lambda x, other=other, step=step: other(x + step * x))  # type: ignore[misc]
            made.append(bench.under(mode, judged.trial))
            if not mode.changed or made[-1].error is not None:
                return ""
        nearest = {name: _nearest(got, [each.values.get(name) for each in made]) for name, got in judged.outcome.values.items()}
        if masks.closer(judged, dataclasses.replace(made[0], values=nearest), STEPPED):
            return f"whole numbers that are {words} explain it"
    return ""


def _nearest(got: torch.Tensor | None, others: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Each element of that one of the others to which it is nearest."""
    fitting = [each.double() for each in others if got is not None and each is not None and each.shape == got.shape]
    if got is None or not fitting:
        return None
    away = torch.stack([(each - got.double()).abs().nan_to_num(nan=math.inf) for each in fitting])
    return torch.stack(fitting).gather(0, away.argmin(0, keepdim=True))[0]


def beside(bench: Bench, judged: Judged) -> bool:
    """Whether wrong elements are what the reference gives a little beside these inputs, to one side or the other, as at a tie. Whole numbers are at
    a tie only if the reference rounds to them: a place of equal numbers is no tie."""
    name, pair = judged.subject, judged.results()
    wrong = judged.distances[name].wrong if name in judged.distances else None
    if pair is None or wrong is None or not bool(wrong.any()) or pair[0].is_complex():
        return False
    got, right = pair
    if not got.is_floating_point() and not _rounds(bench, judged):
        return False
    made, generator, same = bench.make(judged.trial), torch.Generator(), torch.zeros_like(wrong)
    for sign in (1, -1):
        steps = [(each, reference_error.stepped(each, generator.manual_seed(11), sign)) for each in made.values]
        moved = Made([torch.where(each == 0, each, step) for each, step in steps], made.numbers)  # every format holds zero: it is no tie
        other = bench.exact_of(judged.trial, moved).values.get(name)
        if other is not None and other.shape == got.shape:
            same |= (got.double() - other).abs() <= _NEAR * (got.double() - right).abs()
    return bool(same[wrong].all())


def _rounds(bench: Bench, judged: Judged) -> bool:
    """Whether the reference rounds to integers."""
    mode = _Cut(torch.floor)
    bench.under(mode, judged.trial)
    return mode.changed


def _addresses(args: tuple[Any, ...]) -> set[int]:
    return {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}


def wraps(judged: Judged) -> str:
    """How many bits whole numbers have in the candidate, in words: each that is outside of their range is off by a multiple of it, and no other."""
    pair, wrong = judged.results(), judged.distances[judged.subject].wrong if judged.subject in judged.distances else None
    if pair is None or wrong is None or not bool(wrong.any()) or pair[1].is_floating_point() or pair[1].is_complex():
        return ""
    got, right = (each.double() for each in pair)
    for bits in (8, 16, 32):
        range_ = 2.0**bits
        outside = ((right < -range_ / 2) | (right >= range_ / 2), (right < 0) | (right >= range_))  # with a sign, and without one
        if bool(((got - right) % range_ == 0).all()) and any(torch.equal(each, wrong) for each in outside):
            return f"whole numbers have {bits} bits and wrap around"
    return ""


def reason(bench: Bench, judged: Judged) -> str:
    """How an intermediate in a lower format explains the fault, in words, or ""."""
    kind = judged.fault.kind if judged.fault is not None else ""
    if kind == "values" and explains(bench, judged):
        return "intermediates in a lower format explain it"
    if kind == "lost" and loses(bench, judged):
        return "an intermediate becomes zero or Inf in a lower format"
    if "gradient" in judged.subject or kind != "values":
        return ""
    return otherwise(bench, judged) or ("at ties it takes the other side" if beside(bench, judged) else "")


def explains(bench: Bench, judged: Judged) -> bool:
    """Whether the error is a sum of the errors that rounding single ops of the reference makes. Whole numbers are all explained by one op, or not."""
    name, pair = judged.subject, judged.results()
    if pair is None or pair[1].is_complex() or pair[1].numel() < 32:
        return False
    got, right = pair
    if not right.is_floating_point():
        return any(torch.equal(made, got) for dtype in LOW for made in _with_one_lower(bench, judged, name, dtype))
    error = _finite(got.double() - right)
    return any(_share(error, _errors(bench, judged, name, right, dtype)) > SHARE for dtype in LOW)


def loses(bench: Bench, judged: Judged) -> bool:
    """Whether the elements that are lost are those that the reference loses if one of its intermediates is in the format of the inputs."""
    name, pair = judged.subject, judged.results()
    if pair is None or not pair[1].is_floating_point():
        return False
    got, right = pair
    lost = ~got.isfinite() & right.isfinite()
    own = [dtype for dtype in LOW if dtype in {leaf.tensor.dtype for leaf in bench.example.leaves}]
    others = (made for dtype in own for made in _with_one_lower(bench, judged, name, dtype))
    return bool(lost.any()) and any(torch.equal(~made.isfinite() & right.isfinite(), lost) for made in others)


def _with_one_lower(bench: Bench, judged: Judged, name: str, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """The result of the reference with one op after the other in a lower format."""
    for which in range(_MOST):
        mode = _Lowered(which, dtype)
        made = bench.under(mode, judged.trial, gradients="gradient" in name).values.get(name)
        if which >= mode.count:
            return
        if made is not None:
            yield made


def _errors(bench: Bench, judged: Judged, name: str, right: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """The error of each op whose rounding changes the result, up to one for every eight elements."""
    found: list[torch.Tensor] = []
    for made in _with_one_lower(bench, judged, name, dtype):
        if len(found) * 8 >= right.numel():
            break
        if made.shape == right.shape and bool((made != right).any()):
            error = _finite(made.double() - right)
            if not any(torch.equal(error, each) for each in found):  # as of an op that hands numbers on: equal errors have no weights of their own
                found.append(error)
    return found


def _share(error: torch.Tensor, others: list[torch.Tensor]) -> float:
    """The share of the squared error that a combination of the others explains. Leaves out those whose weight is larger than rounding allows."""
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
