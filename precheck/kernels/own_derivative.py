"""Tells whether a candidate's gradient is the derivative of the reference's values, where the reference's own gradient is not.

An op of torch may leave a part of itself out of its derivative, as the likeness of rows does its least length: shorter rows are divided by that
length, and the derivative is that of a division by their own. What a kernel computes there from the formula is right, and the reference is not.
The derivative of the values is taken by central differences in float64. Whoever leaves a part out on purpose says so in the reference, by
`detach`, `no_grad`, or a Function: then its gradient is what is asked for, whatever its values do.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.parts import DEEP, nodes
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made

PLACES = 8
"""The most elements whose derivative is taken."""
_STEP = 2.0**-13
"""The step of a central difference, relative to the element. Its square is the error that is left, about 1e-8."""
_CLOSER = 16.0
"""Times as close as the reference's own gradient the candidate's has to be, and two central differences, one of half the step, to each other."""
_ON_PURPOSE = ("detach", "detach_", "data", "_set_grad_enabled", "item", "tolist", "numpy", "requires_grad_")


class _Told(torch.overrides.TorchFunctionMode):
    """Notes whether what runs in its block leaves a part out of its derivative on purpose. What torch does inside of an op is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.on_purpose = False

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
        self.on_purpose |= (owner or name) in _ON_PURPOSE
        return func(*args, **(kwargs or {}))


def leaves_out(bench: Bench, judged: Judged) -> bool:
    """Whether the wrong gradient of a trial is the derivative of the reference's values, and the reference's gradient is not."""
    fault = judged.fault
    if fault is None or fault.distance is None or fault.distance.wrong is None or judged.outcome is None or judged.reference is None:
        return False
    place = next((at for at, leaf in enumerate(bench.example.leaves) if f"gradient of inputs{leaf.path}" == fault.subject), -1)
    got, own = (side.values.get(fault.subject) for side in (judged.outcome, judged.reference.exact))
    if place < 0 or got is None or own is None or own.is_complex() or got.shape != own.shape or _on_purpose(bench, judged):
        return False
    wrong = fault.distance.wrong.flatten().nonzero().flatten()
    chosen = wrong[torch.linspace(0, len(wrong) - 1, min(PLACES, len(wrong))).long()].tolist()
    return bool(chosen) and all(_follows(bench, judged, place, at, float(got.flatten()[at]), float(own.flatten()[at])) for at in chosen)


def _follows(bench: Bench, judged: Judged, place: int, at: int, got: float, own: float) -> bool:
    whole, half = (_difference(bench, judged, place, at, step) for step in (_STEP, _STEP / 2))
    gap = abs(half - own)
    return math.isfinite(gap) and _CLOSER * abs(got - half) < gap and _CLOSER * abs(whole - half) < gap


def _difference(bench: Bench, judged: Judged, place: int, at: int, step: float) -> float:
    """The central difference of the results, weighted by the incoming gradients. NaN for an element of zero, where a corner may lie."""
    made, totals = bench.make(judged.trial), []
    by = step * abs(float(made.values[place].flatten()[at]))
    if not by or judged.reference is None:
        return math.nan
    for side in (by, -by):
        values = [each.double() if each.is_floating_point() else each.clone() for each in made.values]
        values[place] = values[place].flatten().clone()
        values[place][at] += side
        values[place] = values[place].view(made.values[place].shape)
        found = bench.exact_of(judged.trial, Made(values, made.numbers)).values
        passed = judged.reference.exact.passed.items()
        parts = [(found.get(name), given) for name, given in passed]
        if any(each is None or each.shape != given.shape for each, given in parts):
            return math.nan
        totals.append(sum(float((each.double() * given.double()).sum()) for each, given in parts if each is not None))
    return (totals[0] - totals[1]) / (2 * by)


def _on_purpose(bench: Bench, judged: Judged) -> bool:
    """Whether the reference says that a part of it has no derivative, or has a Function of its own."""
    told, made = _Told(), bench.make(judged.trial)

    def reference(*args: Any, **kwargs: Any) -> Any:
        with told:
            result = bench.reference(*args, **kwargs)
        found = result if isinstance(result, (list, tuple)) else list(result.values()) if isinstance(result, dict) else (result,)
        told.on_purpose |= any(isinstance(each, torch.Tensor) and _of_python(each.grad_fn) for each in found)
        return result

    outcome = running.run(reference, bench.example, made.values, made.numbers, bench.wishes_of(judged.trial))
    return told.on_purpose or outcome.error is not None


def _of_python(node: Any) -> bool:
    """Whether a Function that is written in Python is among the nodes of a result's graph, or these are too many to be looked at."""
    found = enumerate(nodes([node]))
    return any(count >= DEEP or isinstance(each, torch.autograd.function.BackwardCFunction) for count, each in found)
