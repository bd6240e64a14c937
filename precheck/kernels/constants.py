"""Finds factors for which the constants of a reference matter: an eps, a cap or a cutoff shows only where what it meets is about as large."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from precheck import formats
from precheck.kernels.trials import Made, Trial
from precheck.observe.exact import Exact
from precheck.ops import MEETING, base_name
from precheck.torch_internals import in_backward, schema

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench

_NAMES = ("other", "threshold", "lambd", "min", "max", "eps", "beta", "delta", "min_val", "max_val")
"""Names of the arguments of an op that may be a constant."""
_SQUARED = ("eps",)
"""Of an op that norms: what the constant is added to is a mean of squares of the op's first argument."""
_STEP = 2.0**-4
"""The factor that tells how what a constant meets grows with an input."""
_FEW, _MOST, _NEAR = 4, 2**16, 1
"""The most factors for each input; the most elements that are looked at; the largest power of two that changes nothing, up or down."""


class _Met(Exact):
    """float64, noting each constant and the typical size of what it meets."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: list[tuple[float, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not in_backward() and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            for name, constant in _constants(func, args, kwargs or {}):
                self.met.append((abs(constant), _size(args[0]) ** (2 if name in _SQUARED else 1)))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _size(tensor: torch.Tensor) -> float:
    flat = tensor.detach().double().flatten()[:_MOST].abs()
    flat = flat[flat.isfinite()]
    return float(flat.median()) if flat.numel() else math.nan


def _constants(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, float]]:
    """The constants that meet the first argument of an op, by the argument's name."""
    found, meets = [], base_name(func.overloadpacket.__name__) in MEETING
    for place, argument in enumerate(schema(func).arguments):
        given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name not in _NAMES or (argument.name in ("other", "min", "max") and not meets):
            continue
        if isinstance(given, torch.Tensor) and given.dim() == 0 and not given.requires_grad and not given.is_complex():
            given = float(given)
        if isinstance(given, (int, float)) and not isinstance(given, bool) and given and math.isfinite(given):
            found.append((argument.name, float(given)))
    return found


def trials(bench: Bench) -> list[Trial]:
    """Trials in which one input's numbers are larger or smaller, so that what a constant meets is about as large as the constant.

    Of what is met, the size at the example's scale and at a sixteenth of it tell the power with which it grows with the input. So the factor is
    (constant / size) ** (1 / power). It is the same for all correct candidates, and they have the constant in the same place, or one that is as good.
    """
    trial = Trial(seed=66)
    made = bench.make(trial)
    plain, found = _met(bench, trial, made), []
    for place, leaf in enumerate(bench.example.leaves):
        value = made.values[place]
        if not value.is_floating_point() or not value.dim() or not value.numel():
            continue
        small = Made([each * _STEP if at == place else each for at, each in enumerate(made.values)], made.numbers)
        factors = dict.fromkeys(_factors(plain, _met(bench, trial, small)))
        typical, fmt = _size(value), formats.of_dtype(leaf.tensor.dtype)
        allowed = [each for each in factors if fmt.min_normal * 16 < typical * each < fmt.max / 256]
        found += [trial.but(family="scaled", leaf=place, number=each) for each in allowed[:_FEW]]
    return found


def _met(bench: Bench, trial: Trial, made: Made) -> list[tuple[float, float]]:
    mode = _Met()
    bench.under(mode, trial, made=made)
    return mode.met


def _factors(plain: list[tuple[float, float]], small: list[tuple[float, float]]) -> list[float]:
    """Powers of two that bring what is met to its constant."""
    if [each for each, _ in plain] != [each for each, _ in small]:
        return []  # the reference does something else for smaller numbers
    found = []
    for (constant, size), (_, less) in zip(plain, small, strict=True):
        power = math.log(less / size, _STEP) if size > 0 < less and math.isfinite(size + less) else 0.0
        if abs(power) < 0.25:
            continue
        exponent = round(math.log2(constant / size) / power)
        if abs(exponent) > _NEAR:
            found.append(2.0 ** max(min(exponent, 100), -100))
    return found
