"""Judges trials with Inf or NaN among the inputs: NaN must reach what depends on it, and the candidate is finite where the reference is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.kernels import number_kinds
from precheck.kernels.running import Outcome
from precheck.kernels.trial_result import Fault, Judged, Reference
from precheck.kernels.trials import Made, Trial
from precheck.words import counted

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench

_NUMBERS = (-3.0, 0.37, 3.0)
"""Numbers that take the place of Inf or NaN, to see what depends on it."""


def judge(bench: Bench, judged: Judged, outcome: Outcome, reference: Reference) -> None:
    """Sets the fault of a trial with Inf or NaN. It says so if a number is multiplied by 0 that the reference leaves out: 0 times NaN is NaN."""
    among = number_kinds.WORDS[judged.trial.family]
    for name, native in reference.native.values.items():
        got, exact = outcome.values.get(name), reference.exact.values.get(name)
        if native is None or exact is None or got is None or not exact.is_floating_point() or got.shape != exact.shape:
            continue
        lost = ~got.isfinite() & exact.isfinite() & native.isfinite()
        if judged.trial.family == "NaN" and bool(lost.any()):  # the reference may hide a NaN, as torch 2.15's attention does
            lost &= ~(got.isnan() & _depends(bench, judged.trial, name))
        if bool(lost.any()):
            zero = got.isnan() & ~_depends(bench, judged.trial, name) & _still(bench, judged.trial, name, got)
            why = "; it is multiplied by 0 there, not left out" if bool((lost & zero).any()) else ""
            where = counted(int(lost.sum()), "element")
            judged.fault = Fault("lost", name, f"{name}: not finite in {where} where the reference is, with {among} among the inputs{why}")
            return
        if judged.trial.family == "NaN":
            gone = native.isnan() & ~got.isnan() & _depends(bench, judged.trial, name)
            if bool(gone.any()):
                judged.fault = Fault("NaN lost", name, f"{name}: no NaN in {counted(int(gone.sum()), 'element')} computed from NaN")
                return


def _replaced(bench: Bench, trial: Trial, number: float) -> Made:
    made = bench.make(trial)
    values = [each.nan_to_num(nan=number, posinf=number, neginf=number) if place == trial.leaf else each for place, each in enumerate(made.values)]
    return Made(values, made.numbers)


def _depends(bench: Bench, trial: Trial, name: str) -> torch.Tensor:
    """Whether each element of the exact result depends on the number in place of Inf or NaN."""
    native = bench.of(trial).native
    results = [bench.exact_or_wider(trial, _replaced(bench, trial, number), native).values.get(name) for number in _NUMBERS]
    first, *rest = results
    if first is None:
        return torch.zeros((), dtype=torch.bool)
    changed = torch.zeros(first.shape, dtype=torch.bool)
    for other in rest:
        if other is not None:
            changed |= (other - first).abs() > 1e-9 * first.abs()
    return changed


def _still(bench: Bench, trial: Trial, name: str, got: torch.Tensor) -> torch.Tensor:
    """Which elements of the candidate's result are the same bits for all numbers in place of Inf or NaN."""
    results = [bench.call(trial, _replaced(bench, trial, number))[0].values.get(name) for number in _NUMBERS]
    same = torch.ones(got.shape, dtype=torch.bool)
    for other in results:
        first = results[0]
        if first is None or other is None or other.shape != got.shape:
            return torch.zeros(got.shape, dtype=torch.bool)
        same &= (other == first) & other.isfinite()
    return same
