"""Measures of a trial's error that distinguish classes of faults."""

from __future__ import annotations

import math

import torch

from precheck import ops
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Trial

_PLACES = 4
"""Places of which the first one that matters is asked for. A number may be beyond a limit."""


def blunt(judged: Judged) -> bool:
    """Whether an element's error is a tenth of the typical element, which rounding does not cause in a sum of some hundred terms."""
    errors, pair = errors_of(judged, judged.subject), judged.results()
    if errors is None or pair is None or not errors.numel():
        return True
    size = pair[1].nan_to_num(posinf=0.0, neginf=0.0).square().mean().sqrt()
    return bool(errors.abs().nan_to_num(nan=math.inf).amax() > 0.1 * size)


def inputs_of(bench: Bench, trial: Trial) -> str:
    return "inputs are" if trial.laid < 0 else f"inputs{bench.example.leaves[trial.laid].path} is"


def sums(bench: Bench, trial: Trial) -> bool:
    """Whether the reference adds anything up."""
    return any(ops.REGISTRY[name].kind in (ops.Kind.CONTRACTION, ops.Kind.REDUCTION, ops.Kind.RUNNING)
               for name in bench.ops(trial) if name in ops.REGISTRY)  # fmt: skip


def errors_of(judged: Judged, name: str) -> torch.Tensor | None:
    pair = judged.results(name)
    return None if pair is None or not pair[1].is_floating_point() else (pair[0].double() - pair[1]).where(pair[1].isfinite(), 0.0)


def error_of(judged: Judged, name: str) -> float:
    """The relative error of the norm."""
    errors = errors_of(judged, name)
    pair = judged.results(name)
    if errors is None or pair is None:
        return math.nan
    norm = float(pair[1].nan_to_num(posinf=0.0, neginf=0.0).norm())
    far = float(errors.norm())
    return math.inf if not math.isfinite(far) else far / norm if norm else far


def carriers(errors: torch.Tensor) -> float:
    """The number of elements that carry an error: all of them if their errors are alike, one if one is far larger than the others."""
    squares = errors.double().square()
    return float(squares.sum().square() / squares.square().sum().clamp(min=1e-300))


def adds(bench: Bench, trial: Trial, dimension: str, name: str) -> bool:
    """Whether a result adds up along a dimension: other numbers in its first place that matters change more than that place. A result that depends on
    no number, as the gradient of a bias, may be a sum too."""
    made, size = bench.make(trial), dict(trial.sizes)[dimension]
    before = bench.exact_of(trial, made).values.get(name)
    for place in range(min(size, _PLACES)):
        for value, shape in zip(made.values, bench.dimensions.shapes, strict=True):
            if value.is_floating_point():
                for axis in (axis for axis, each in enumerate(shape) if each == dimension):
                    value.select(axis, place).add_(1)
        after = bench.exact_of(trial, made).values.get(name)
        if before is None or after is None or before.shape != after.shape:
            return True
        changed = int((before != after).sum())
        if changed:
            return changed > 2 * before.numel() * (place + 1) / size
    return True


def differ(first: Judged, second: Judged) -> bool:
    if first.outcome is None or second.outcome is None:
        return False
    pairs = ((value, second.outcome.values.get(name)) for name, value in first.outcome.values.items())
    return any(a is not None and b is not None and a.shape == b.shape and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def explained(first: Judged, second: Judged) -> bool:
    """Whether two results differ by far less than their errors, so that the error is not random."""
    assert first.outcome is not None
    assert second.outcome is not None
    for name, value in first.outcome.values.items():
        other, off = second.outcome.values.get(name), errors_of(first, name)
        if value is not None and other is not None and off is not None and float((value.double() - other.double()).norm()) > 0.05 * float(off.norm()):
            return False
    return True


def constant(bench: Bench, judged: Judged) -> bool:
    """Whether outputs stay the same on other inputs, although the reference's change."""
    other = bench.judge(judged.trial.but(seed=judged.trial.seed + 500, given=False))
    if judged.outcome is None or other.outcome is None or other.outcome.error is not None or other.reference is None or judged.reference is None:
        return False
    for name in (each for each in judged.outcome.values if each.startswith("output")):
        a, b = judged.outcome.values[name], other.outcome.values.get(name)
        right, other_right = judged.reference.exact.values.get(name), other.reference.exact.values.get(name)
        if a is None or b is None or right is None or other_right is None or a.shape != b.shape or torch.equal(right, other_right):
            continue
        if torch.equal(a.nan_to_num(), b.nan_to_num()) and bool((a.isfinite() | b.isfinite()).any()):  # of results that are lost nothing is known
            return True
    return False
