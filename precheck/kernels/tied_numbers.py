"""Judges together what is free for each of several equal numbers, where an op chooses among them: their gradients, and their places.

Which of equal numbers is the largest is free, so each of them may have the gradient, or a share of it. But the largest number grows by as much as
all of them grow together: their gradients add up to one derivative, whichever are chosen. A kernel that gives the whole gradient to each of them is
wrong. Where the sum depends on a choice too, as of zeros that a relu hides or shows, nothing is asked.

Each place of a sort, or of the best few of a row, may be that of any equal number. But no number is chosen twice: all places of a row differ.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.kernels import reference_error
from precheck.kernels.running import Outcome
from precheck.kernels.trial_result import Fault, Judged, Reference
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact
from precheck.ops import base_name
from precheck.words import counted

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


class _Places(Exact):
    """float64, noting places that an op chooses, several in a row, of which none comes twice: the tensor, and the axis of its rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.chosen: list[tuple[torch.Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if base_name(func.overloadpacket.__name__) in ops.CHOOSERS and result[1].dim() == args[0].dim():
            self.chosen += [(result[1], axis) for axis in range(result[1].dim()) if not _again(result[1], axis)]
        return result


def _again(places: torch.Tensor, axis: int) -> int:
    """How many places come again in their row."""
    return int((places.sort(axis).values.diff(dim=axis) == 0).sum())


def places(bench: Bench, judged: Judged, outcome: Outcome) -> Fault | None:
    """A fault if a place comes twice among those that an op of the reference chooses."""
    whole = {name: got for name, got in outcome.values.items() if got is not None and got.dtype is torch.int64 and got.dim() and got.numel()}
    if not whole or judged.reference is None or not any(bool(judged.reference.floors[name].unknown.any()) for name in whole):
        return None  # nothing was free
    mode = _Places()
    bench.under(mode, judged.trial, made=judged.reference.made)
    for name, got in whole.items():
        right = judged.reference.floors[name].exact
        axes = [axis for chosen, axis in mode.chosen if right.shape == chosen.shape and torch.equal(right, chosen.cpu())]
        twice = min((_again(got, axis) for axis in axes), default=0)
        if twice:
            text = f"{name}: {counted(twice, 'place')} of {got.numel()} for the second time in a row, where each number has one"
            return Fault("values", name, text, dataclasses.replace(judged.distances[name], wrong=got != right))
    return None


def gradients(bench: Bench, judged: Judged, outcome: Outcome, reference: Reference) -> Fault | None:
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
