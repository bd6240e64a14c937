"""Compares a quantised layer with its original: is the difference of their weights rounding, or a wrong scale, zero point or order? Is the result
that of its own dequantised weight in float32?

The errors of rounding have no mean and no correlation with the weight. A wrong scale makes an error proportional to the weight. A wrong zero point
makes one with a mean, in the blocks that share it. Codes in a wrong order have no similarity to the weight, unless a permutation restores it. A
rotation of the columns that the input does not have keeps the angles between rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch

from precheck.analysis.chance import DEVIATIONS
from precheck.analysis.limit import Limit
from precheck.formats import E2M1, E2M3, E3M2, E4M3FN, ONE_ROUNDING, integers, mx, nvfp4, scaled
from precheck.formats.tiles import ROW, TENSOR

BLOCKS = (16, 32, 64, 128)
"""The numbers of columns in a group, in existing formats."""
OTHER_WEIGHT = Limit(0.6, "cosine")
"""If the cosine between a weight and its quantised form is smaller, it is another weight. Ternary weights of a Gaussian reach 0.9, binary ones
0.8."""
FOUND = Limit(0.8, "cosine")
"""A permutation explains the difference if the cosine is at least this after it. The same holds for an orthogonal rotation and the cosine between the
angles of rows."""
FEWEST = 6
"""The fewest counting elements of a block that is judged."""
FACTOR = Limit(0.15, "relative difference")
"""The scale of a block is wrong if its factor is further from 1. Rounding to 4 bits leaves 0.02, and the best clipping for 4 bits 0.05. In finer
formats it is wrong from where the part of the error that is proportional to the weight is larger than the rest."""
OFFSET = Limit(1.0, "standard deviations of the rounding error")
"""The largest mean error of a block. A zero point that is off by one makes √12."""
BIAS = Limit(0.02, "relative error")
"""The largest error of a bias, which is not quantised. A bias that is stored and added in bfloat16 is off by 0.003."""
WRONG_BLOCKS = Limit(1 / 16, "share of the blocks")
"""The smallest share of wrong blocks that is reported. Single blocks that are all zero, or that hold one outlier, are no sign of a bug."""
KERNEL = Limit(3.0, "times what rounding explains")
"""The largest error of a layer whose kernel quantises its input. What rounding explains is measured on this very input: storing the result, and
quantising the input."""
MODES: tuple[mx.Mode, ...] = ("floor", "ceil", "even", "rceil")


@dataclasses.dataclass(frozen=True, slots=True)
class Misfit:
    """A fault of a quantised weight."""

    what: str  # "order", "rotation", "scale", "zero point"
    detail: str
    measured: float
    limit: float


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """The result of the comparison: the relative error, and the fault if it is not rounding."""

    error: float
    misfit: Misfit | None

    @property
    def decibels(self) -> float:
        return -20 * math.log10(max(self.error, 1e-12))


def fitted(weight: torch.Tensor, quantised: torch.Tensor) -> Fit:
    """Compares two matrices of real numbers, outputs by inputs. `quantised` is dequantised."""
    weight, quantised = weight.double(), quantised.double()
    error = float((quantised - weight).norm() / weight.norm().clamp_min(1e-300))
    if likeness(weight, quantised) < OTHER_WEIGHT:
        return Fit(error, _reordered(weight, quantised) or _scaled(weight, quantised) or _other(weight, quantised))
    return Fit(error, _scaled(weight, quantised))


def likeness(one: torch.Tensor, other: torch.Tensor) -> float:
    """The cosine of the angle between two matrices, after each row is normalised, since rows may have scales of their own."""
    rows = (each / each.norm(dim=1, keepdim=True).clamp_min(1e-300) for each in (one, other))
    first, second = rows
    return float((first * second).sum() / len(first))


def _scaled(weight: torch.Tensor, quantised: torch.Tensor) -> Misfit | None:
    """A wrong scale or zero point, in the kind of blocks of which the largest share is wrong."""
    counts = _counting(quantised)
    found = [_worst(blocks(weight), blocks(quantised), blocks(counts), what) for what, blocks in _partitions(weight.shape[1])]
    return max(found, key=lambda each: each[0])[1]


def _partitions(columns: int) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """The kinds of blocks that may share a scale, in words, each with a function that makes a row of each block."""
    yield "rows", lambda matrix: matrix
    yield "columns", lambda matrix: matrix.t()
    for size in BLOCKS:
        if columns % size == 0 and size < columns:
            yield f"groups of {size} columns", lambda matrix, size=size: matrix.reshape(-1, size)  # type: ignore[misc]


def _worst(weight: torch.Tensor, quantised: torch.Tensor, counts: torch.Tensor, what: str) -> tuple[float, Misfit | None]:
    """The share of wrong blocks, which are the rows here, and their fault. A line is fitted to each block's elements that count: its slope is the
    factor of the scale, and what it adds is that of the zero point. Errors of elements may differ in size, so chance is estimated from each (HC3:
    MacKinnon and White, Journal of Econometrics 29, 1985). Another weight has no such factor."""
    many = counts.sum(1).clamp_min(1)
    centre, middle = ((counts * each).sum(1) / many for each in (weight, quantised))
    apart = counts * (weight - centre[:, None])
    width = apart.square().sum(1).clamp_min(1e-300)
    factor = (apart * quantised).sum(1) / width
    offset = middle - factor * centre
    rest = counts * (quantised - factor[:, None] * weight - offset[:, None])
    deviation = (rest.square().sum(1) / (many - 2).clamp_min(1)).sqrt().clamp_min(1e-12 * float(weight.abs().amax()))
    alone = rest / (1 - counts / many[:, None] - apart.square() / width[:, None]).clamp_min(1e-6)  # from a line that is fitted to the others
    size = ((counts * weight.square()).sum(1) / many).sqrt().clamp_min(1e-300)
    judged, spread = many >= FEWEST, (counts * (quantised - middle[:, None])).square().sum(1).clamp_min(1e-300)
    same = factor.abs() * (width / spread).sqrt() >= OTHER_WEIGHT  # the cosine between both, each without its mean
    allowed = (deviation / size).clamp(max=float(FACTOR))
    off = judged & same & ((factor - 1).abs() > allowed + DEVIATIONS * (apart * alone).norm(dim=1) / width)
    by_chance = ((counts / many[:, None] - centre[:, None] * apart / width[:, None]) * alone).norm(dim=1)
    shifted = judged & (offset.abs() > OFFSET * deviation + DEVIATIONS * by_chance)
    least = max(WRONG_BLOCKS * float(judged.sum()), 1.0)
    if int(off.sum()) >= least:
        found = factor[off]
        detail = f"{int(off.sum())} of {len(off)} {what} are {float(found.min()):.3g} to {float(found.max()):.3g} times what they were"
        return len(found) / int(judged.sum()), Misfit("scale", detail, float((found - 1).abs().amax()), float(FACTOR))
    if int(shifted.sum()) >= least:
        steps = offset[shifted].abs() / deviation[shifted]
        detail = f"{int(shifted.sum())} of {len(shifted)} {what} are shifted, by up to {float(steps.amax()) / 12**0.5:.2g} steps"
        return len(steps) / int(judged.sum()), Misfit("zero point", detail, float(steps.amax()), float(OFFSET))
    return 0.0, None


def _counting(quantised: torch.Tensor) -> torch.Tensor:
    """1 for elements that are at least three times as large as the smallest nonzero neighbour, and smaller than the largest. 0 for the others.

    Smaller ones may all have been rounded to zero, and the largest may be clipped. Between them rounding has no bias.
    """
    rows, columns = quantised.shape
    size = min(BLOCKS[0], columns)
    full = torch.nn.functional.pad(quantised.abs(), (0, -columns % size)).view(rows, -1, size)
    least = torch.where(full > 0, full, torch.inf).amin(-1, keepdim=True)
    counts = (full >= 3 * least) & (full < full.amax(-1, keepdim=True))
    return counts.view(rows, -1)[:, :columns].double()


def _reordered(weight: torch.Tensor, quantised: torch.Tensor) -> Misfit | None:
    """The permutation that restores the weight, among those that mistakes in packing make."""
    for what, change in _orders(weight.shape):
        again = change(quantised)
        if again.shape == weight.shape and (found := likeness(weight, again)) > FOUND:
            return Misfit("order", f"{what}: changed back, it is {100 * found:.0f}% the weight", likeness(weight, quantised), float(OTHER_WEIGHT))
    return None


def _orders(shape: torch.Size) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """The wrong orders that mistakes in packing make, in words, each with a function that puts the codes right."""
    rows, columns = shape
    if rows == columns:
        yield "it is transposed", lambda matrix: matrix.t()
    if columns % 2 == 0:
        yield "neighbouring columns have changed places (the halves of each byte)", lambda matrix: _paired(matrix).flip(-1).reshape(rows, columns)
        yield "even and odd columns were unpacked as first and second half", lambda matrix: torch.stack(matrix.chunk(2, 1), -1).reshape(rows, columns)
        yield "first and second half were unpacked as even and odd columns", lambda matrix: _paired(matrix).transpose(1, 2).reshape(rows, columns)
        yield "the halves of the columns have changed places", lambda matrix: torch.cat(matrix.chunk(2, 1)[::-1], 1)
    yield "the columns are in reverse", lambda matrix: matrix.flip(1)
    yield "the rows are in reverse", lambda matrix: matrix.flip(0)
    yield "rows were read as columns", lambda matrix: matrix.reshape(columns, rows).t()
    for size in (4, 8, 16):
        if columns % size == 0:
            yield f"runs of {size} columns are in reverse", lambda matrix, size=size: matrix.view(rows, -1, size).flip(-1).reshape(rows, columns)  # type: ignore[misc]


def _paired(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.reshape(matrix.shape[0], -1, 2)


def _other(weight: torch.Tensor, quantised: torch.Tensor) -> Misfit:
    """The fault of a quantised weight that is unlike its original in any order."""
    alike, rotated = likeness(weight, quantised), _angles(weight, quantised)
    if rotated > FOUND:
        detail = f"the angles between its rows are the weight's ({100 * rotated:.0f}%), and its numbers are not ({100 * max(alike, 0.0):.0f}%)"
        return Misfit("rotation", detail, alike, float(OTHER_WEIGHT))
    detail = f"{100 * max(alike, 0.0):.0f}% of it is the weight, and no common order of packing brings it back"
    return Misfit("order", detail, alike, float(OTHER_WEIGHT))


def _angles(weight: torch.Tensor, quantised: torch.Tensor) -> float:
    """The cosine between the inner products of different rows in both matrices. An orthogonal rotation of the columns does not change these."""
    if len(weight) < FEWEST:
        return 0.0
    first, second = (each @ each.t() for each in (weight, quantised))
    first, second = (each - torch.diag(each.diagonal()) for each in (first, second))
    return float((first * second).sum() / (first.norm() * second.norm()).clamp_min(1e-300))


def expected(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, roundoff: float) -> tuple[torch.Tensor, float, float]:
    """The float32 result and two relative errors that rounding explains. One is for unchanged inputs. The other is for inputs quantised in the
    coarsest usual way: int8 by token or tensor, with or without zero points, or e4m3 by token, tensor or blocks of 32."""
    wide = given.float()
    result = wide @ weight.t() + bias
    norm = result.norm().clamp_min(1e-30)
    stored = ONE_ROUNDING * roundoff * 3**0.5  # of the input, of the weight and of the result
    quantised = [*_integers(wide), *_floats(wide)]
    coarse = max(float(((each - wide) @ weight.t()).norm() / norm) for each in quantised)
    return result, stored, (stored**2 + coarse**2) ** 0.5


def reproduced(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, made: torch.Tensor, roundoff: float) -> bool:
    """Whether a layer that quantises its input to 4 or 6 bits makes this result, up to the rounding of what is stored.

    Such an input has a far larger error than `expected` allows. So it is accepted only if one of the formats makes exactly this result.
    """
    wide, made = given.float(), made.float()
    norm, stored = made.norm().clamp_min(1e-30), ONE_ROUNDING * roundoff * 3**0.5
    return any(float((each @ weight.t() + bias - made).norm() / norm) <= KERNEL * stored for each in _narrow(wide))


def _narrow(wide: torch.Tensor) -> Iterator[torch.Tensor]:
    """The input in formats of 4 and 6 bits, as inference libraries scale them."""
    for element in (E2M1, E2M3, E3M2):
        for mode in MODES:
            yield mx.dequantised(*mx.quantised(wide, element, mode=mode))
    for over in (nvfp4.tensor_scale(wide.abs().amax()), None):
        elements, scales = nvfp4.quantised(wide, over=over)
        yield nvfp4.dequantised(elements, scales, over)
    for tile in (ROW, integers.group(mx.BLOCK)):
        for symmetric in (True, False):
            scale, zero = integers.parameters(wide, integers.INT4, tile=tile, symmetric=symmetric)
            yield integers.dequantised(integers.quantised(wide, integers.INT4, scale, zero, tile), scale, zero, tile)


def _integers(wide: torch.Tensor) -> list[torch.Tensor]:
    """The input in int8, as the usual kernels quantise it."""
    made = []
    for tile in (ROW, TENSOR):
        for symmetric in (True, False):
            scale, zero = integers.parameters(wide, integers.INT8, tile=tile, symmetric=symmetric)
            made.append(integers.dequantised(integers.quantised(wide, integers.INT8, scale, zero, tile), scale, zero, tile))
    return made


def _floats(wide: torch.Tensor) -> list[torch.Tensor]:
    blocks = mx.dequantised(*mx.quantised(wide, E4M3FN))
    return [blocks, *(scaled.dequantised(*scaled.quantised(wide, E4M3FN, tile=tile), tile) for tile in (ROW, TENSOR))]
