"""Judges the gradient that equal numbers of an input have together, where an op chooses one of them.

Which of equal numbers is the largest is free, so each of them may have the gradient, or a share of it. But the largest number grows by as much as
all of them grow together: their gradients add up to one derivative, whichever are chosen. A kernel that gives the whole gradient to each of them is
wrong. Where the sum depends on a choice too, as of zeros that a relu hides or shows, nothing is asked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from precheck.kernels import reference_error
from precheck.kernels.running import Outcome
from precheck.kernels.trial_result import Fault, Judged, Reference
from precheck.kernels.trials import Made

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench

HALF = 0.5
"""The share of the largest gradient among equal numbers from which a sum of theirs has one too many, or too few."""
ROUNDED = 1 / 16
"""The share of all these gradients that is spared: equal numbers may have equal gradients, of which all are rounded to one side."""
KEPT = 2.0**-6
"""The share of the largest by which the sum may change with the choice, and with rounding, and still counts as known."""
_RUNS = 4
"""Noise runs, each of which chooses anew."""


def fault(bench: Bench, judged: Judged, outcome: Outcome, reference: Reference) -> Fault | None:
    """A fault if equal numbers of an input have together another gradient than with any choice among them."""
    made = reference.made or bench.make(judged.trial)
    for leaf, value in zip(bench.example.leaves, made.values, strict=True):
        name = f"gradient of inputs{leaf.path}"
        got, right = outcome.values.get(name), reference.exact.values.get(name)
        if name not in judged.distances or got is None or right is None or right.is_complex() or not got.shape == right.shape == value.shape:
            continue
        kinds, places = value.reshape(-1).unique(return_inverse=True)
        if len(kinds) == value.numel():
            continue
        sizes = torch.maximum(got.double().abs(), right.abs())
        largest = torch.zeros(len(kinds), dtype=torch.float64).scatter_reduce(0, places, sizes.reshape(-1), "amax")
        many, sums = places.bincount(minlength=len(kinds)) > 1, _sums(right, places, len(kinds))
        room = HALF * largest + ROUNDED * _sums(sizes, places, len(kinds))
        off = many & ((_sums(got, places, len(kinds)) - sums).abs() > room)
        for other in _others(bench, judged, made) if bool(off.any()) else ():
            again = other.values.get(name)
            if other.error is None and again is not None and again.shape == right.shape:
                off &= (_sums(again, places, len(kinds)) - sums).abs() <= KEPT * largest
        if bool(off.any()):
            wrong = off[places].reshape(value.shape) & (got != 0)
            text = f"{name}: more than one choice in {int(wrong.sum())} elements: among equal numbers {_in_words(got, right, places, off)}"
            return Fault("values", name, text, dataclasses.replace(judged.distances[name], wrong=wrong, elements=int(wrong.sum())))
    return None


def _sums(gradient: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """The sum of the gradients of each number."""
    return torch.zeros(count, dtype=torch.float64).index_add(0, places, gradient.double().reshape(-1))


def _others(bench: Bench, judged: Judged, made: Made) -> list[Outcome]:
    """Results of other choices: beside these inputs, where no two are equal, and of noise runs."""
    return [*reference_error.beside(bench, judged.trial, made), *(bench.noisy(judged.trial, made, seed)[0] for seed in range(_RUNS))]


def _in_words(got: torch.Tensor, right: torch.Tensor, places: torch.Tensor, off: torch.Tensor) -> str:
    at = int(off.nonzero()[0])
    one, other = (float(_sums(each, places, len(off))[at]) for each in (got, right))
    return f"the gradients add up to {one:.6g}, and with any choice to {other:.6g}"
