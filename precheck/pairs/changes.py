"""Finds a change that makes one tensor of another: a factor, a shift, an order, a row that is added. Tries it in a run: model's result is put in the
place of other's.

A change has numbers of its own, so it fits some tensors whatever they hold: any two constants differ by a factor, and by a sum. Such a fit is none.

So only a change whose reversal makes the models agree explains anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import PARTED, agree
from precheck.pairs.intermediates import ALIKE, Intermediates, Marks, alike
from precheck.pairs.place import FLOAT32, Place

MASKED = 1e30
"""Magnitude from which a number belongs to a mask: beyond any score, within float32's range."""
SHIFTS = (1, -1, 2, -2)
"""Shifts in positions that are tried: those of bugs that people report."""


def changes(here: torch.Tensor, there: torch.Tensor, what: str) -> Iterator[str]:
    """Changes that turn `there`, of model, into `here`, of other, in words. Both have the same shape."""
    a, b = seen(here, there)
    by = factor(a, b)
    if by is not None and by != 1:
        yield f"{by:.6g} times {what}"
    for dim in range(here.dim()):
        for by_ in SHIFTS:
            if here.shape[dim] > abs(by_) + 1 and agree(part(a, dim, by_), part(b, dim, -by_)) and not agree(part(b, dim, by_), part(b, dim, -by_)):
                yield f"{what}, shifted: element i is element i{-by_:+d} of that, along dimension {dim}"
        if here.shape[dim] > 1 and agree(a.flip(dim), b) and not agree(b.flip(dim), b):
            yield f"{what} the other way round, along dimension {dim}"
    if here.dim() > 1 and here.shape[0] > 1:
        yield from _added((a - b).reshape(-1, here.shape[-1]), b.reshape(-1, here.shape[-1]), what)


def _added(difference: torch.Tensor, b: torch.Tensor, what: str) -> Iterator[str]:
    """A row that is added to all rows of `b`, if these are not all the same. Of a single number, if not all of `b` is the same."""
    near = PARTED * float(b.abs().max())
    if len(b) < 2 or not bool(torch.count_nonzero(difference)) or float((difference - difference[0]).abs().max()) > near:
        return
    number = float((difference - difference[0, 0]).abs().max()) <= near
    if float((b - (b[0, 0] if number else b[0])).abs().max()) > near:
        yield f"{what} plus{f' {difference[0, 0].item():.6g}' if number else ' the same row everywhere, as of a bias'}"


def seen(here: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64, or complex128 if either is complex, with zeros where either is masked."""
    covered, wide = hidden(here) | hidden(there), torch.complex128 if here.is_complex() or there.is_complex() else torch.float64
    return here.to(wide).masked_fill(covered, 0), there.to(wide).masked_fill(covered, 0)


def hidden(value: torch.Tensor) -> torch.Tensor:
    return value.abs().nan_to_num(nan=math.inf) >= MASKED


def part(value: torch.Tensor, dim: int, by: int) -> torch.Tensor:
    return value.narrow(dim, max(0, by), value.shape[dim] - abs(by))


def factor(here: torch.Tensor, there: torch.Tensor) -> float | None:
    """The factor by which `here` is `there`, or None. Sizes that are all equal show only a factor that people choose: a whole number, or one part of
    a whole number of parts."""
    square = float((there * there.conj()).real.sum())
    found = float((here * there.conj()).real.sum()) / square if square > 0 else 0.0
    if not found or not math.isfinite(found) or not agree(here, there * found):
        return None
    sizes = there.abs()[there != 0]
    chosen = any(math.isfinite(each) and abs(each - round(each)) <= 1e-6 * abs(each) for each in (found, 1 / found))
    return found if chosen or float(sizes.max() - sizes.min()) > PARTED * float(sizes.max()) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What may explain a difference, in words: it made result `number` of `other` out of this `tensor` of `model`. None if no op did."""

    words: str
    number: int | None = None
    tensor: torch.Tensor | None = None


class _Replaced(Intermediates):
    """Puts a tensor in the place of one result."""

    def __init__(self, model: torch.nn.Module, module: str, change: Change) -> None:
        super().__init__(model, {module}, own=False)
        self.change = change

    def meet(self, output: torch.Tensor) -> None:
        wanted = self.change.tensor
        if len(self.made) == self.change.number and wanted is not None and wanted.numel() == output.numel():
            output.copy_(wanted.reshape(output.shape))


def cures(comparison: Comparison, place: Place, change: Change) -> bool:
    """Whether the module's last result is then that of model's module, or all that is made of the replaced one occurs in model."""
    follower = _Replaced(comparison.other.job.model, place.module if place.ran is None else place.ran, change)
    with contextlib.suppress(*REFUSALS):
        with follower.followed(), sdpa_kernel(SDPBackend.MATH):
            comparison.other.forward(place.dtype)
        within = ALIKE if place.dtype is torch.float64 else PARTED * FLOAT32
        known = Marks([each.signature for each in place.ours], within)
        moved, readers = {change.number}, []  # the replaced result as it is moved on, and what is made of it
        for number, each in enumerate(follower.made):
            if moved.intersection(each.reads):
                if alike(each.signature, follower.made[change.number or 0].signature, within):
                    moved.add(number)
                else:
                    readers.append(each)
        last = alike(follower.made[-1].signature, place.ours[-1].signature, within)
        return last or (bool(readers) and all(each.signature in known for each in readers))
    return False
