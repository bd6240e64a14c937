"""Finds a change that makes one tensor of another: a factor, a shift, an order, a row that is added.

A change has numbers of its own, so it fits some tensors whatever they hold: any two constants differ by a factor, and by a sum. Such a fit is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from precheck.pairs.backward_difference import PARTED
from precheck.pairs.floors import relative

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
            if here.shape[dim] > abs(by_) + 1 and same(part(a, dim, by_), part(b, dim, -by_)) and not same(part(b, dim, by_), part(b, dim, -by_)):
                yield f"{what}, shifted: element i is element i{-by_:+d} of that, along dimension {dim}"
        if here.shape[dim] > 1 and same(a.flip(dim), b) and not same(b.flip(dim), b):
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
    if not found or not math.isfinite(found) or not same(here, there * found):
        return None
    sizes = there.abs()[there != 0]
    chosen = any(math.isfinite(each) and abs(each - round(each)) <= 1e-6 * abs(each) for each in (found, 1 / found))
    return found if chosen or float(sizes.max() - sizes.min()) > PARTED * float(sizes.max()) else None


def same(here: torch.Tensor, there: torch.Tensor) -> bool:
    return relative(here, there) <= PARTED
