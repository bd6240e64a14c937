"""Measures the distance of two tensors, as a whole and by blocks: rows, slices of each dimension, heads, tiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from precheck.torch_internals import no_dispatch

LEAST = 64
"""The fewest elements for which blocks are examined. With fewer, the whole is as informative."""
TILE = 32
"""Rows and columns of a tile: the smallest tile that GPU kernels compute at a time."""
LONG = 1 << 16
"""The fewest elements of a matrix that is read in parts."""
PART = 1 << 15
"""Elements of such a part: 256 KB in float64."""


@dataclasses.dataclass(slots=True)
class Squares:
    """Sums of squares of all elements and of each block of each partition. `excess` counts NaN and Inf that the exact tensor does not have."""

    whole: float
    blocks: list[torch.Tensor]
    excess: int = 0

    def __add__(self, other: Squares) -> Squares:
        blocks = [a + b for a, b in zip(self.blocks, other.blocks, strict=True)]
        return Squares(self.whole + other.whole, blocks, self.excess + other.excess)

    def times(self, factor: float) -> Squares:
        return Squares(self.whole * factor, [each * factor for each in self.blocks], self.excess)


def squared_distance(value: torch.Tensor, exact: torch.Tensor) -> Squares:
    """The squared distance of `value` from `exact`, two real or complex tensors of the same shape. Equal Inf or NaN in both count as no distance."""
    with no_dispatch(), torch.no_grad():
        if len(value.shape) == 2 and value.numel() >= LONG and not value.is_complex():
            found = _in_parts(value, exact)
            if found is not None:
                return found
        value, exact = _wide(value), _wide(exact)
        difference = value - exact
        if bool(difference.isfinite().all()):
            return _squares(difference)
        finite = difference.isfinite()
        excess = int((~finite & exact.isfinite()).sum()) + int((~value.isfinite() & ~exact.isfinite() & ~_alike(value, exact)).sum())
        return dataclasses.replace(_squares(torch.where(finite, difference, torch.zeros_like(difference))), excess=excess)


def size(exact: torch.Tensor) -> Squares:
    """The squared norm of a tensor without its non-finite elements."""
    with no_dispatch(), torch.no_grad():
        if len(exact.shape) == 2 and exact.numel() >= LONG and not exact.is_complex():
            found = _in_parts(exact, None)
            if found is not None:
                return found
        return _squares(_wide(exact).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))


def sums_of_finite(value: torch.Tensor, exact: torch.Tensor) -> tuple[float, float] | None:
    """The squared distance and the squared norm of the second as in `squared_distance` and `size`, without the blocks, which cost several times
    that much. None where a number is not finite, or where they are so many that they are read in parts."""
    if exact.numel() >= LONG:
        return None
    with no_dispatch(), torch.no_grad():
        value, exact = _wide(value), _wide(exact)
        difference = value - exact
        return (float(difference.square().sum()), float(exact.square().sum())) if bool(difference.isfinite().all()) else None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, format and bytes."""
    with no_dispatch(), torch.no_grad():
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes in one row, with the signs that are read. One element may have any stride, and torch reads bytes only if the stride is 1."""
    row = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return (row if row.stride(0) == 1 else row.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def partitions(shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """All partitions of a tensor of that shape: the name of a block, and the dimensions that number the blocks."""
    if len(shape) < 2 or torch.Size(shape).numel() < LEAST:
        return []
    found: list[tuple[str, tuple[int, ...]]] = [(f"slice of dimension {dim}", (dim,)) for dim, length in enumerate(shape) if length > 1]
    if len(shape) > 2:
        found.append(("row", tuple(range(len(shape) - 1))))
    if len(shape) > 3:
        found.append(("slice of dimensions 0 and 1", (0, 1)))
    if min(shape[-2:]) >= 2 * TILE:
        found.append((f"tile of {TILE} x {TILE}", ()))
    return found


def lengths(shape: tuple[int, ...]) -> list[int]:
    """The number of elements of a block, by partition."""
    numel = torch.Size(shape).numel()
    return [numel // torch.Size([shape[dim] for dim in dims]).numel() if dims else TILE * TILE for _, dims in partitions(shape)]


def block_name(shape: tuple[int, ...], partition: int, block: int) -> str:
    """The name of a block, such as "row [0, 3]" or "slice 2 of dimension 1"."""
    name, dims = partitions(shape)[partition]
    if not dims:
        across = shape[-1] // TILE
        tiles = across * (shape[-2] // TILE)
        row, column = divmod(block % tiles, across)
        return f"{name} at [{row * TILE}, {column * TILE}]"
    found = [int(each) for each in torch.unravel_index(torch.tensor(block, device="cpu"), [shape[dim] for dim in dims])]
    return name.replace("slice", f"slice {found[0]}") if len(found) == 1 else f"{name} {found}"


def _in_parts(value: torch.Tensor, exact: torch.Tensor | None) -> Squares | None:
    """The distance or norm of a long matrix, computed a few rows at a time, which stay in the cache: a fifth of the time. None if it is not
    finite."""
    height, width = value.shape
    columns = torch.zeros(width, dtype=torch.float64, device=value.device)
    tiled = min(height, width) >= 2 * TILE
    rows, tiles = [], []
    for place in range(0, height, step := max(TILE, PART // width // TILE * TILE)):
        part = value[place : place + step].to(torch.float64, copy=True)
        if exact is not None:
            other = exact[place : place + step]
            part.sub_(other if other.dtype.itemsize > 1 else other.double())  # torch subtracts no booleans, and promotes no float8
        part.square_()
        columns += part.sum(0)
        rows.append(part.sum(1))
        if tiled and len(part) >= TILE:
            high, wide = len(part) // TILE, width // TILE
            tiles.append(part[: high * TILE, : wide * TILE].reshape(high, TILE, wide, TILE).sum((1, 3)).reshape(-1))
    whole = float(columns.sum())
    if not math.isfinite(whole):
        return None
    blocks = [torch.cat(rows)] * (height > 1) + [columns] * (width > 1)
    return Squares(whole, blocks + ([torch.cat(tiles)] if tiled else []))


def _squares(difference: torch.Tensor) -> Squares:
    squares = difference.square()
    return Squares(float(squares.sum()), list(_blocks(squares)))


def _blocks(squares: torch.Tensor) -> Iterator[torch.Tensor]:
    shape = tuple(squares.shape)
    for _, dims in partitions(shape):
        if dims:
            others = [dim for dim in range(len(shape)) if dim not in dims]
            yield (squares.sum(others) if others else squares).reshape(-1)
        else:
            height, width = shape[-2] // TILE, shape[-1] // TILE
            cut = squares[..., : height * TILE, : width * TILE].reshape(-1, height, TILE, width, TILE)
            yield cut.sum((2, 4)).reshape(-1)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()).double() if value.is_complex() else value.double()


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def greatest(ratios: list[torch.Tensor]) -> tuple[float, int, int]:
    """The greatest number of all blocks, with its partition and its block, or (0, -1, -1) if there are no blocks."""
    best = (0.0, -1, -1)
    for partition, each in enumerate(ratios):
        if each.numel():
            value, block = each.max(0)
            best = max(best, (float(value), partition, int(block)))
    return best


def block_counts(shape: tuple[int, ...]) -> list[int]:
    """The number of blocks, by partition."""
    counts = []
    for _, dims in partitions(shape):
        tiles = shape[-1] // TILE * (shape[-2] // TILE) * torch.Size(shape[:-2]).numel() if len(shape) > 1 else 0
        counts.append(torch.Size([shape[dim] for dim in dims]).numel() if dims else tiles)
    return counts
