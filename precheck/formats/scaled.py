"""Casts to narrow floats with a float32 scale for a tensor, a row or a tile, computed from its present or earlier largest magnitude.

Elements are multiplied by their scale to be dequantised. Scales from a largest magnitude equal `torchao.float8`'s, bit for bit.
"""

from __future__ import annotations

import torch

from precheck.formats import tiles
from precheck.formats.casting import Rounding, cast
from precheck.formats.floats import Format
from precheck.formats.tiles import TENSOR, Tile

LEAST = 1e-12
"""The least value of a largest magnitude: torchao's EPS."""


def multipliers(amax: torch.Tensor, fmt: Format, *, power_of_two: bool = False) -> torch.Tensor:
    """The factors for tiles with these largest magnitudes before the cast: max / amax. `power_of_two`: rounded down to a power of two."""
    found = (fmt.max / amax.double().clamp(min=LEAST)).float()
    return torch.exp2(torch.floor(torch.log2(found))) if power_of_two else found


def quantised(
    values: torch.Tensor, fmt: Format, *, tile: Tile = TENSOR, power_of_two: bool = False, by: torch.Tensor | None = None,
    rounding: Rounding = "nearest", generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns the elements, numbers of `fmt` as float32, and the factor of each tile. The factor is `by` if it is given."""
    wide = values.float()
    by = multipliers(tiles.amax(wide, tile), fmt, power_of_two=power_of_two) if by is None else by
    return cast(tiles.times(wide, by, tile), fmt, rounding=rounding, generator=generator), by


def dequantised(elements: torch.Tensor, by: torch.Tensor, tile: Tile = TENSOR) -> torch.Tensor:
    """The values of the elements, as float32."""
    return elements / tiles.spread(by, elements, tile)
