"""Finds whether a tensor's values occur anywhere in a model's run: in one tensor, in a slice of a joined tensor, or in another order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import PARTED, agree, range_of
from precheck.pairs.intermediates import Intermediates, Made, Marks, alike, signature
from precheck.torch_internals import no_dispatch

NEAR = 1e-9
"""Distance up to which two numbers of exact runs in float64 count as equal, relative to the root mean square of the tensor: 10^6 roundings."""
SHIFT = 1.001
"""Factor by which numbers are moved to see how many of them are within PARTED of others by chance, from where on two tensors differ. One of two
models may hold numbers that were rounded to float32, such as a table of sines or a weight in codes, so that equal results are further apart than
NEAR."""
FEWEST = 16
"""Numbers from which all of them being near by chance is excluded where half of the moved ones are not: once in 2^16."""
SAMPLES = 257
"""Elements that are looked up. Among a million numbers, one is within NEAR of another by chance once in a thousand; all of them never are."""


class Contents:
    """All values that `model` computes in one exact run. The run is made at the first use."""

    def __init__(self, comparison: Comparison, dtype: torch.dtype, passed: Sequence[torch.Tensor]) -> None:
        self.comparison, self.dtype, self.passed = comparison, dtype, passed
        self.known: torch.Tensor | None = None
        self.ops: list[Made] = []  # of that run

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values occur in the run. In float32, where runs round, only whether one whole tensor has the same values."""
        if self.comparison.aligned is not None or self.dtype is not torch.float64:
            mark = signature(tensor)
            return any(each.numel() == mark[0] and alike(mark, signature(each), 1e-5) for each in self.passed)
        known = self._known()
        with no_dispatch(), torch.no_grad():
            values = _finite(tensor)
            size = float(values.square().mean().sqrt()) if len(values) else 0.0
            some = values[:: max(1, len(values) // SAMPLES)]
            return not len(values) or float(_distances(some, known).max()) <= NEAR * size or _rounded(some, known, size)

    def hold_whole(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values are those of one tensor of the run, in any layout, or of a range of one along an axis. A table of multiples may
        have all its numbers in the run, at other places."""
        if not self.hold(tensor):
            return False
        mark, here = signature(tensor), tensor.detach().squeeze()
        whole = [*self.passed, *(each.tensor for each in self.ops if each.tensor is not None), *self._weights()]
        found = any(each.numel() == mark[0] and alike(mark, signature(each), PARTED) for each in whole)
        return found or any(here.dim() > 0 and range_of(each.squeeze(), here) is not None for each in whole)

    def marks(self) -> Marks:
        """The signatures of all that `model` computes and holds."""
        self._known()
        return Marks([each.signature for each in self.ops] + [signature(each) for each in (*self.passed, *self._weights())], PARTED)

    def learn(self, tensors: Sequence[torch.Tensor]) -> None:
        """Adds tensors that count as correct, such as the inputs of a correct result: values inside a fused kernel of `model` are not seen
        otherwise."""
        if tensors and self.dtype is torch.float64:
            with no_dispatch(), torch.no_grad():
                self.known = torch.cat([self._known(), *(_finite(each) for each in tensors)]).sort().values

    def _known(self) -> torch.Tensor:
        if self.known is None:
            made = self._results()
            with no_dispatch(), torch.no_grad():
                self.known = torch.cat([_finite(each) for each in (*self.passed, *made)]).sort().values
        return self.known

    def _results(self) -> list[torch.Tensor]:
        model = self.comparison.model.job.model
        held = self._weights()
        follower = Intermediates(model, {""}, own=False)
        with contextlib.suppress(*REFUSALS), follower.followed(), sdpa_kernel(SDPBackend.MATH):
            self.comparison.model.forward(self.dtype)
        self.ops = follower.made
        return [*held, *(each.tensor for each in follower.made if each.tensor is not None)]

    def _weights(self) -> list[torch.Tensor]:
        model = self.comparison.model.job.model
        return [each.detach() for each in (*model.parameters(), *model.buffers()) if each.is_floating_point() and each.layout is torch.strided]

    def made_of(self, start: torch.Tensor, result: torch.Tensor, module: str) -> bool:
        """Whether `model` makes the second tensor of the first, in the own code of one of its modules."""
        if self.dtype is not torch.float64 or self.comparison.hidden is not None:
            return False
        self._known()
        mark, reached = signature(start), set[int]()
        for number, each in enumerate(self.ops):
            if each.module == module and any(read in reached for read in each.reads):
                if agree(each.tensor, result):
                    return True
                reached.add(number)
            elif alike(mark, each.signature):
                reached.add(number)
        return False


def _rounded(values: torch.Tensor, known: torch.Tensor, size: float) -> bool:
    """Whether all values are known numbers, one of the two rounded to float32, and not by chance: of the values times `SHIFT` at most half are."""
    if len(values.unique()) < FEWEST:
        return False
    allowed, moved = (PARTED * each.abs().clamp(min=size) for each in (values, values * SHIFT))
    chance = (_distances(values * SHIFT, known) <= moved).double().mean()
    return bool((_distances(values, known) <= allowed).all()) and float(chance) <= 0.5


def _distances(values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """The distance of each value from its nearest known number. `known` is sorted."""
    place = torch.searchsorted(known, values.contiguous())
    near = [(known[(place + by).clamp(0, len(known) - 1)] - values).abs() for by in (-1, 0)]
    return torch.minimum(*near)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    values = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).detach().double().flatten()
    return values[values.abs() < 1e30]
