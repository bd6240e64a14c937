"""Narrow floats under float32 scales: one for a tensor, a row or a tile, from its greatest magnitude now or of steps before.

Scales are what elements are multiplied by to be dequantised. Those from a greatest magnitude equal `torchao.float8`'s, bit for bit.
"""

from __future__ import annotations

import torch

from precheck.formats import tiles
from precheck.formats.casting import Rounding, cast
from precheck.formats.floats import Format
from precheck.formats.tiles import TENSOR, Tile

LEAST = 1e-12
"""Below it a greatest magnitude counts as that: torchao's EPS."""


def multipliers(amax: torch.Tensor, fmt: Format, *, power_of_two: bool = False) -> torch.Tensor:
    """What tiles with these greatest magnitudes are multiplied by before the cast: max / amax, with `power_of_two` rounded down to one."""
    found = (fmt.max / amax.double().clamp(min=LEAST)).float()
    return torch.exp2(torch.floor(torch.log2(found))) if power_of_two else found


def quantised(
    values: torch.Tensor, fmt: Format, *, tile: Tile = TENSOR, power_of_two: bool = False, by: torch.Tensor | None = None,
    rounding: Rounding = "nearest", generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The elements, numbers of `fmt` as float32, and what each tile was multiplied by; that is `by` where it is given."""
    wide = values.float()
    by = multipliers(tiles.amax(wide, tile), fmt, power_of_two=power_of_two) if by is None else by
    return cast(wide * tiles.spread(by, wide, tile), fmt, rounding=rounding, generator=generator), by


def dequantised(elements: torch.Tensor, by: torch.Tensor, tile: Tile = TENSOR) -> torch.Tensor:
    """What the elements stand for, as float32."""
    return elements / tiles.spread(by, elements, tile)
