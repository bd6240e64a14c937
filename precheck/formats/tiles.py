"""Splits tensors into tiles that share a scale: computes their largest magnitudes, and expands scales to the elements.

Importing this module does not import torch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WHOLE = -1
"""The extent of a tile that covers the whole dimension."""
VECTOR = 32
"""From this many columns on torch reduces a row with vector instructions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """How many rows and columns share a scale; `WHOLE` for all. Columns are the last dimension, rows all other dimensions.

    If the tile does not divide the tensor, the last tiles are smaller.
    """

    rows: int
    columns: int

    def extents(self, matrix: torch.Tensor) -> tuple[int, int]:
        """The rows and columns of a tile of `matrix`, with its extents in place of `WHOLE`."""
        rows, columns = matrix.shape
        return (rows or 1) if self.rows == WHOLE else self.rows, (columns or 1) if self.columns == WHOLE else self.columns


TENSOR = Tile(WHOLE, WHOLE)
ROW = Tile(1, WHOLE)
COLUMN = Tile(WHOLE, 1)


def matrix(values: torch.Tensor) -> torch.Tensor:
    """Returns a view as a matrix: all dimensions before the last become one."""
    return values.reshape(-1, values.shape[-1] if values.dim() else 1)


def amax(values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The largest magnitude of each tile, as a matrix. NaN for a tile with NaN."""
    parts = _split(matrix(values).abs(), tile)
    each = parts.squeeze(1) if parts.shape[1] == 1 else parts.amax(1)  # both dimensions at once take ten times as long
    while each.shape[2] < VECTOR and each.shape[2] % 2 == 0:
        first, second = each.chunk(2, 2)
        each = first.maximum(second)
    return each.amax(2)


def extremes(values: torch.Tensor, tile: Tile) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest number of each tile, with zero counted as an element."""
    parts = _split(matrix(values), tile)
    return parts.amin(dim=(1, 3)).clamp_(max=0), parts.amax(dim=(1, 3)).clamp_(min=0)


def spread(scales: torch.Tensor, like: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The scale of each element, in the shape of `like` or in one that broadcasts to it."""
    if scales.numel() == 1:
        return scales.reshape(())
    flat = matrix(like)
    rows, columns = tile.extents(flat)
    each = _repeated(scales, rows)[: flat.shape[0]]
    if columns >= flat.shape[1]:
        return each.reshape(*like.shape[:-1], 1)
    wide = each[:, :, None].expand(-1, -1, columns).reshape(len(each), -1)[:, : flat.shape[1]]
    return wide.reshape(like.shape)


def times(values: torch.Tensor, scales: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Each element times its scale."""
    columns = tile.columns
    if tile.rows != 1 or columns <= 1 or scales.numel() == 1 or values.shape[-1] % columns or columns == values.shape[-1]:
        return values * spread(scales, values, tile)
    return (values.reshape(len(scales), -1, columns) * scales[:, :, None]).view(values.shape)  # without a scale for each element in memory


def _repeated(scales: torch.Tensor, times: int) -> torch.Tensor:
    """Repeats each row `times` times. Copies only if `times` is more than one."""
    return scales[:, None].expand(-1, times, -1).reshape(-1, scales.shape[1]) if times > 1 else scales


def _split(flat: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Reshapes to (tiles, rows, tiles, columns). The last tiles are filled with zeros, which do not change a largest magnitude."""
    rows, columns = tile.extents(flat)
    missing = -flat.shape[0] % rows, -flat.shape[1] % columns
    if any(missing):
        full = flat.new_zeros(flat.shape[0] + missing[0], flat.shape[1] + missing[1])
        full[: flat.shape[0], : flat.shape[1]] = flat
        flat = full
    return flat.view(flat.shape[0] // rows, rows, flat.shape[1] // columns, columns)
