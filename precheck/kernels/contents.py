"""Draws random values for tensors like those of an example: the same kind of numbers, in other shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

FEW = 4
"""Elements below which a pattern in an example counts as chance."""

SIGNED = 12
"""Elements from which a common sign is not chance. With fewer, every other trial keeps it."""

ROWS = 2**18
"""Elements that tell of which kind the numbers of a large tensor are."""

_NEAR = 1e-2
"""Tolerance for probabilities in a low format, whose sum should be 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds for integers: the largest value that is allowed under the sizes of a trial."""

    most: int | None = None
    lengths: dict[int, int] = dataclasses.field(default_factory=dict)  # maps sizes of the example to those of the trial


Limits = tuple[float, float] | None
"""The least and the largest number that may take the place of another. None where no other kinds of numbers may: the example's have a pattern."""
FREE = (-math.inf, math.inf)


def like(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator, bounds: Bounds) -> tuple[torch.Tensor, Limits]:
    """Random values of that shape, in float64, int64 or bool, and between which limits other kinds of numbers may take their place."""
    if example.dtype is torch.bool:
        return _mask(example, shape, generator), None
    if example.is_complex():
        parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
        return torch.complex(*parts), None
    if not example.is_floating_point():
        return _whole(example, shape, generator, bounds), None
    return _real(example.double(), shape, generator)


def sampled(example: torch.Tensor) -> torch.Tensor:
    """Rows of a large tensor of real numbers that are evenly apart, as a view. Matrices whose sides are equal and masks with Inf stay whole, since
    they may be triangles."""
    if not example.is_floating_point() or example.numel() <= ROWS or bool(example.isinf().any()):
        return example
    whole = 2 if example.dim() > 1 and example.shape[-1] == example.shape[-2] else 1
    for axis in range(example.dim() - whole):
        step = min(-(-example.numel() // ROWS), example.shape[axis])
        if step > 1:
            example = example[(slice(None),) * axis + (slice(None, None, step),)]
    return example


def one_sign(example: torch.Tensor, least: int = FEW) -> int:
    """The sign that all numbers have, where they are so few that this may be chance, and at least `least`. 0 for others."""
    if not example.is_floating_point() or not least <= example.numel() < SIGNED:
        return 0
    return 1 if bool((example >= 0).all()) else -1 if bool((example <= 0).all()) else 0


def shares(example: torch.Tensor) -> bool:
    """Whether the rows are logarithms of probabilities, which sum to 1."""
    if not example.is_floating_point() or example.numel() < FEW or not example.dim() or example.shape[-1] < 2 or bool((example > 0).any()):
        return False
    return bool((example.double().logsumexp(-1).abs() < _NEAR).all())


def boxes(example: torch.Tensor) -> bool:
    """Whether the rows are boxes, their lower corner before their upper one. Of fewer than four rows this may be chance."""
    if example.dim() < 2 or example.shape[-1] != 4 or example.numel() < 4 * FEW or not bool(example.isfinite().all()):
        return False
    return bool((example[..., 2:] > example[..., :2]).all())


def chances(example: torch.Tensor) -> bool:
    """Whether the rows are probabilities."""
    if not example.is_floating_point() or example.numel() < FEW or not example.dim() or example.shape[-1] < 2 or bool((example < 0).any()):
        return False
    return bool(((example.double().sum(-1) - 1).abs() < _NEAR).all())


def unit(example: torch.Tensor) -> bool:
    """Whether the numbers lie between 0 and 1, as shares and probabilities do, and are not these alone."""
    if not example.is_floating_point() or example.numel() < SIGNED or bool((example < 0).any() | (example > 1).any()):
        return False
    return not bool((example == example.round()).all()) and not bool(example.isnan().any())


def to_ends(drawn: torch.Tensor, rows: bool, generator: torch.Generator) -> torch.Tensor:
    """Numbers between 0 and 1, some of them at either end. `rows`: rows that sum to 1 still do, with some shares of 0, or one share of 1."""
    none = torch.rand(drawn.shape, generator=generator) < 0.3
    if not rows:
        return torch.where(none, 0.0, torch.where(torch.rand(drawn.shape, generator=generator) < 0.3, 1.0, drawn))
    if none.dim() > 1 and none.numel():
        none.view(-1, none.shape[-1])[0] = True
    none[..., :1] &= ~none.all(-1, keepdim=True)
    left = drawn.masked_fill(none, 0)
    return left / left.sum(-1, keepdim=True).clamp(min=2.0**-100)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _real(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.Tensor, Limits]:
    finite = example[example.isfinite()]
    if example.dim() == 0:
        return _single(example, generator), None
    if finite.numel() == 0:
        return _normal(shape, generator), None
    if finite.numel() < example.numel():
        return _masked(example, _real_free(finite, shape, generator), generator), None
    if shares(example):  # scores; the caller takes the log-softmax of them at the end
        return _normal(shape, generator) * max(float(finite.std()), 1.0), FREE
    made = _structured(example, shape, generator)
    if made is not None:
        return made, None
    least, most = float(finite.min()), float(finite.max())
    if least == most:
        return (_normal(shape, generator), FREE) if least == 0 else (_uniform(shape, 0.5 * least, 1.5 * least, generator), FREE)
    chance = finite.numel() < SIGNED and float(torch.rand((), generator=generator)) < 0.5
    if finite.numel() >= FEW and (least >= 0 or most <= 0) and not chance:
        return _uniform(shape, least, most, generator), (least, most)
    return _real_free(finite, shape, generator), FREE


def _single(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A scale, a limit or a share that is passed as a tensor, between half of the example's value and all of it, so that it is valid too. A power of
    two stays one, since what it divides may lie on ties."""
    if not bool(example.isfinite()):
        return example.clone()
    share = _uniform((), 0.5, 1.0, generator)
    return example * (share * 2).round() / 2 if float(torch.frexp(example).mantissa.abs()) == 0.5 else example * share


def _real_free(finite: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    spread = float(finite.std(correction=0)) if finite.numel() > 1 else 0.0
    return _normal(shape, generator) * (spread or abs(float(finite.mean())) or 1.0) + (float(finite.mean()) if finite.numel() >= 16 else 0.0)


def _structured(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor | None:
    """Probabilities, sorted numbers, tables that hold each number twice, symmetric and triangular matrices, or integers. None for anything else."""
    if example.numel() < FEW:
        return None
    if chances(example):
        return _normal(shape, generator).softmax(-1)
    if example.dim() == 1 and bool((example.diff() > 0).all()):
        return _uniform(shape, float(example.min()), float(example.max()), generator).sort().values
    if shape[-1] == 4 and boxes(example):
        sizes = example[..., 2:] - example[..., :2]
        low = _real_free(example[..., :2].flatten(), (*shape[:-1], 2), generator)
        return torch.cat([low, low + _uniform((*shape[:-1], 2), float(sizes.min()), float(sizes.max()), generator)], -1)
    twice = _twice(example)
    if twice is not None and shape[-1] and shape[-1] % 2 == 0:
        half = _real(twice, (*shape[:-1], shape[-1] // 2), generator)[0]
        return torch.cat([half, half], -1) if torch.equal(twice, example[..., : twice.shape[-1]]) else half.repeat_interleave(2, -1)
    if example.dim() >= 2 and example.shape[-1] == example.shape[-2] > 1 and shape[-1] == shape[-2]:
        made = _matrix(example, shape, generator)
        if made is not None:
            return made
    return _integers(example, shape, generator)


def _integers(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor | None:
    if bool((example == example.round()).all()) and float(example.min()) < float(example.max()):
        return torch.randint(int(example.min()), int(example.max()) + 1, shape, generator=generator).double()
    return None


def _twice(example: torch.Tensor) -> torch.Tensor | None:
    """Half of a table that holds each number twice, like those of rotary positions: as two equal halves, or as pairs of neighbours. Else None."""
    half = example.shape[-1] // 2
    if half < 2 or example.shape[-1] % 2 or bool((example == example.reshape(-1)[0]).all()):
        return None
    if torch.equal(example[..., :half], example[..., half:]):
        return example[..., :half]
    return example[..., ::2] if torch.equal(example[..., ::2], example[..., 1::2]) else None


def _matrix(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor | None:
    """A symmetric or triangular matrix.

    A symmetric one of integers stays of integers, as of neighbours in a graph. One that is positive definite stays that: it belongs to equations.
    """
    drawn, size = _normal(shape, generator), shape[-1]
    eye = torch.eye(size, dtype=torch.float64)
    if torch.allclose(example, example.mT, rtol=1e-3, atol=1e-6):
        whole = _integers(example, shape, generator) if bool(torch.linalg.cholesky_ex(example)[1].any()) else None
        return drawn @ drawn.mT / max(size, 1) + 0.5 * eye if whole is None else whole.triu() + whole.triu(1).mT
    for keep in (torch.tril, torch.triu):
        if bool((keep(example) == example).all()):
            return keep(drawn) * (1 - eye) + eye * (drawn.abs() + 0.5)
    return None


def _masked(example: torch.Tensor, drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Scores or masks with Inf: about as many as in the example, in the same triangle if they form one. No row is all Inf if no row of the example
    is."""
    infinite = example.isinf()
    value = float(example[infinite][0]) if bool(infinite.any()) else float("-inf")
    where = _mask(infinite, tuple(drawn.shape), generator) if drawn.dim() else torch.zeros((), dtype=torch.bool)
    zeros = bool((example[~infinite] == 0).all())
    if drawn.dim() and drawn.shape[-1] and not bool(infinite.all(-1).any()):
        where &= ~where.all(-1, keepdim=True)
    return (torch.zeros_like(drawn) if zeros else drawn).masked_fill(where, value)


def _mask(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    ones = torch.ones(shape, dtype=torch.bool)
    if example.dim() >= 2 and example.numel() >= FEW:
        for keep, diagonal in ((torch.tril, 0), (torch.triu, 1), (torch.tril, -1), (torch.triu, 0)):
            if bool((example == keep(torch.ones_like(example), diagonal)).all()):
                return keep(ones, diagonal)
    density = min(max(float(example.double().mean()) if example.numel() else 0.5, 0.3), 0.8)
    drawn = torch.rand(shape, generator=generator) < density
    if example.dim() >= 1 and example.shape[-1] >= FEW and not bool(example.all()):
        for falling in (True, False):
            steps = example.to(torch.int8).diff(dim=-1)
            if bool((steps <= 0).all() if falling else (steps >= 0).all()):
                drawn = drawn.to(torch.int8).sort(dim=-1, descending=falling).values.bool()
                break
    if drawn.dim() and drawn.shape[-1] and not bool((~example).all(-1).any() if example.dim() else True):
        drawn[..., 0] |= ~drawn.any(-1)
    return drawn


def alike(example: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The drawn whole numbers as one of them everywhere, or flags that are all True. As drawn, where the example's are in order, differ from one
    another, or form a triangle: these are of a kind that they keep."""
    if not drawn.numel() or not drawn.dim() or drawn.is_floating_point() or drawn.is_complex():
        return drawn
    if example.dtype is torch.bool:
        triangle = example.dim() >= 2 and any(torch.equal(example, keep(example)) for keep in (torch.tril, torch.triu))
        return drawn if triangle or not bool(example.any()) else torch.ones_like(drawn)
    flat = example.flatten()
    if flat.unique().numel() == flat.numel() or bool((flat.diff() >= 0).all()) or int(drawn.max()) < 0:
        return drawn
    return torch.full_like(drawn, int(drawn[drawn >= 0].flatten()[0]))


def _whole(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator, bounds: Bounds) -> torch.Tensor:
    if example.numel() == 0:
        return torch.zeros(shape, dtype=torch.int64)
    flat, count = example.long().reshape(-1), 1
    for size in shape:
        count *= size
    least, most = int(flat.min()), int(flat.max())
    special = least if least < 0 <= (int(flat[flat != least].min()) if bool((flat != least).any()) else -1) else None
    top = most if bounds.most is None else min(most, bounds.most)
    if example.dim() == 0 or least == most:
        return torch.full(shape, min(least, top) if least >= 0 else least)
    if example.dim() == 1:
        ordered = _ordered(flat, count, generator, bounds)
        if ordered is not None:
            return ordered
    low = 0 if special is not None else min(least, top)
    drawn = torch.randint(low, max(top, low) + 1, shape, generator=generator)
    if special is not None:
        drawn[torch.rand(shape, generator=generator) < float((flat == special).double().mean())] = special
    elif flat.unique().numel() == flat.numel() and count <= top - low + 1:  # an example without repeats stays without repeats
        drawn = (torch.randperm(top - low + 1, generator=generator)[:count] + low).reshape(shape)
    return drawn


def offsets(example: torch.Tensor, lengths: Iterable[int]) -> bool:
    """Whether these are the offsets of sequences with the end of the last one: integers from 0 up to a size, in order."""
    if example.dim() != 1 or len(example) < 2 or example.is_floating_point() or example.is_complex() or example.dtype is torch.bool:
        return False
    return int(example[0]) == 0 and bool((example.diff() >= 0).all()) and int(example[-1]) in set(lengths)


def _ordered(flat: torch.Tensor, count: int, generator: torch.Generator, bounds: Bounds) -> torch.Tensor | None:
    """New positions, permutations or offsets, if the example has them. None for any other numbers."""
    size, least, most = len(flat), int(flat.min()), int(flat.max())
    places = torch.arange(size)
    if torch.equal(flat, places + least):
        return torch.arange(count) + least
    if least == 0 and most == size - 1 and torch.equal(flat.sort().values, places):
        return torch.randperm(count, generator=generator)
    if offsets(flat, bounds.lengths):
        end = bounds.lengths[most]
        inner = torch.randint(0, end + 1, (max(count - 2, 0),), generator=generator).sort().values
        return torch.cat([torch.zeros(min(count, 1), dtype=torch.int64), inner, torch.full((1 if count > 1 else 0,), end)])
    if size >= FEW and bool((flat.diff() >= 0).all()):
        top = most if bounds.most is None else min(most, bounds.most)
        return torch.randint(min(least, top), top + 1, (count,), generator=generator).sort().values
    return None
