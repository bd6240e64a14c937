"""Tells which results of a reference depend on one number of an input, and which belong together with these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.kernels import running, thresholds
from precheck.kernels.running import Outcome
from precheck.kernels.trials import Made, Trial
from precheck.observe.containers import call, tensors
from precheck.observe.exact import Exact, widened

if TYPE_CHECKING:
    from precheck.kernels.bench import Bench

_NUMBERS = (-3.0, 0.37, 3.0)
"""Numbers that take the place of Inf or NaN, to see what depends on it. Others are beyond all that the input holds, and on either side of the numbers
with which the reference compares it."""
_MOVES = ((0.75, 0.25), (0.01, -200.0), (0.01, 200.0), (-0.01, 0.0))
"""Factors and summands that change the numbers that results read: by a little, and so that others become the largest, the smallest, or the largest in
size, where their own order is turned round too. What is chosen then, and was not before, reads the same numbers too."""
_STEPS = 64
"""How often results and the numbers that they read are looked up in turn. Each turn reaches at least the next row of a window."""
_MOST = 512
"""The most numbers of an input that are changed one by one. Each takes a run of the reference."""

Masks = dict[str, torch.Tensor]
"""For each output, which of its elements are meant."""


class Dependence:
    """What depends on the Inf or NaN of a trial, in the reference: finite numbers in its place change it."""

    def __init__(self, bench: Bench, trial: Trial) -> None:
        self.bench, self.trial = bench, trial
        results = [self._with(number) for number in (*_NUMBERS, *self._further())]
        self.first = results[0].values
        self.dependent: Masks = {}
        for other in results[1:]:
            for name, changed in self._changed(other).items():
                self.dependent[name] = self.dependent.get(name, torch.zeros((), dtype=torch.bool)) | changed

    def _further(self) -> Iterator[float]:
        made, place = self._made(_NUMBERS[0], None, _MOVES[0]), self.trial.leaf
        most = float(made.values[place].double().abs().max())
        yield from (-2 * most, 2 * most)
        for number in thresholds.compared(self.bench, self.trial, made).get(place, ()):
            yield from (number - abs(number) / 2 - 1, number, number + abs(number) / 2 + 1)

    def of(self, name: str) -> torch.Tensor:
        """The elements of a result that depend on it."""
        return self.dependent.get(name, torch.zeros((), dtype=torch.bool))

    def connected(self) -> Masks:
        """The elements of all results that share numbers of the same input with those that depend on it, directly or through others. Rows of one
        sequence do, and rows of two sequences do not. Nothing does if nothing depends on it, as on padding. Elements in which the reference would be
        NaN do, if there were a NaN: a weight of one alone is 1, and 0 / 0 where its score is -Inf. That is asked of attention's separate ops, since
        torch's fused attention on a CPU gives 0 for a row whose scores are all NaN or hidden."""
        with sdpa_kernel(SDPBackend.MATH):
            reached = self._with(math.nan).values
        found, numbers = self.dependent, self._read(self.dependent)
        for _ in range(_STEPS):
            read = numbers
            for move in _MOVES:
                changed = self._changed(self._with(_NUMBERS[0], numbers, move))
                found = {name: mask | changed[name] if name in changed else mask for name, mask in found.items()}
                read = read | self._read(found, numbers, move)  # what was not chosen before, now is
            if torch.equal(read, numbers):
                break
            numbers = read
        return {name: mask | value.isnan() if (value := reached.get(name)) is not None else mask for name, mask in found.items()}

    def _with(self, number: float, moved: torch.Tensor | None = None, move: tuple[float, float] = _MOVES[0]) -> Outcome:
        """The exact result with that number in place of Inf or NaN, and with the numbers in `moved` changed."""
        return self.bench.exact_or_wider(self.trial, self._made(number, moved, move), self.bench.of(self.trial).native)

    def _made(self, number: float, moved: torch.Tensor | None, move: tuple[float, float]) -> Made:
        made, place = self.bench.make(self.trial), self.trial.leaf
        made.values[place] = made.values[place].nan_to_num(nan=number, posinf=number, neginf=number)
        if moved is not None:
            for each in self._alike(made):
                made.values[each] = torch.where(moved, made.values[each] * move[0] + move[1], made.values[each])
        return made

    def _alike(self, made: Made) -> list[int]:
        """The input with the number, and others of its shape: numbers at one place belong together, as the parts of a complex number do."""
        shape = made.values[self.trial.leaf].shape
        return [place for place, each in enumerate(made.values) if each.shape == shape and each.is_floating_point()]

    def _changed(self, other: Outcome) -> Masks:
        pairs = ((name, value, other.values.get(name)) for name, value in self.first.items())
        return {name: (b - a).abs() > 1e-9 * a.abs() for name, a, b in pairs if a is not None and b is not None and a.shape == b.shape
                and a.is_floating_point()}  # fmt: skip

    def _read(self, results: Masks, moved: torch.Tensor | None = None, move: tuple[float, float] = _MOVES[0]) -> torch.Tensor:
        """The numbers of the input that these results have a derivative by."""
        made, place = self._made(_NUMBERS[0], moved, move), self.trial.leaf
        values = list(made.values)
        leaf: torch.Tensor = widened(values[place]).detach()
        leaves = {number: widened(values[number]).detach().requires_grad_() for number in self._alike(made)}
        for number, value in leaves.items():
            values[number] = value
        try:
            with torch.enable_grad(), Exact():  # type: ignore[no-untyped-call]
                with running.surroundings(self.bench.wishes, self.bench.example.device, autocasts=False):
                    found = list(tensors(call(self.bench.reference, self.bench.example.filled(values, made.numbers))))
                generator = torch.Generator().manual_seed(1)
                total = torch.zeros((), dtype=torch.float64)
                for path, each in found:
                    mask = results.get(f"output{path}" if len(found) > 1 else "output")
                    if mask is not None and each.requires_grad:
                        weight = torch.rand(each.shape, generator=generator, dtype=torch.float64) + 0.5
                        total = total + (each * weight.to(each.device))[mask].sum()
                if total.requires_grad:
                    slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                    return torch.stack([each != 0 for each in slopes if each is not None]).any(0)
        except Exception:  # a reference that does not run in float64 says nothing
            return torch.zeros_like(leaf, dtype=torch.bool)
        return self._tried(results, leaf)

    def _tried(self, results: Masks, leaf: torch.Tensor) -> torch.Tensor:
        """The same for a reference that passes no gradient back: each number is changed alone. None where these are too many."""
        read = torch.zeros_like(leaf, dtype=torch.bool)
        for place in range(leaf.numel() if leaf.numel() <= _MOST else 0):
            moved = torch.zeros_like(read)
            moved.view(-1)[place] = True
            changed = self._changed(self._with(_NUMBERS[0], moved))
            read.view(-1)[place] = any(bool((mask & results[name]).any()) for name, mask in changed.items() if name in results)
        return read
