"""Casts tensors to integers of 8 or 4 bits with float32 scales and zero points, for a tensor, a row or a group of columns.

Scales, zero points and codes equal `torchao.quantization.quant_primitives`, bit for bit.
"""

from __future__ import annotations

import torch

from precheck.formats import tiles
from precheck.formats.casting import HALF_VARIANCE, Rounding, by_chance
from precheck.formats.tiles import ROW, TENSOR, Tile
from precheck.formats.whole import INT4, INT8, UINT4, Integers

LEAST = 2.0**-126
"""The least scale: float32's smallest normal number."""


def group(columns: int) -> Tile:
    """The tile for groups of so many columns of a row."""
    return Tile(1, columns)


def parameters(values: torch.Tensor, kind: Integers, *, tile: Tile = ROW, symmetric: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the zero point of each tile, as matrices. Zero points are whole numbers in float32."""
    return from_extremes(*tiles.extremes(values.float(), tile), kind, symmetric=symmetric)


def from_extremes(low: torch.Tensor, high: torch.Tensor, kind: Integers, *, symmetric: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for tiles whose smallest and largest numbers these are."""
    if symmetric:
        scale = (torch.maximum(-low, high) / ((kind.most - kind.least) / 2)).clamp_(min=LEAST)
        return scale, torch.full_like(scale, float(int((kind.most + kind.least + 1) / 2)))
    scale = ((high - low) / (kind.most - kind.least)).clamp_(min=LEAST)
    return scale, (kind.least - torch.round(low / scale)).clamp_(kind.least, kind.most)


def quantised(
    values: torch.Tensor, kind: Integers, scale: torch.Tensor, zero: torch.Tensor, tile: Tile = ROW, *, rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
) -> torch.Tensor:  # fmt: skip
    """The integer codes of `values` as float32, in the same shape. `rounding` is as in `casting.cast`."""
    wide = values.float()
    steps = wide * tiles.spread(1.0 / scale, wide, tile)
    if rounding == "nearest":
        steps = steps.round_()
    elif rounding == "stochastic":
        steps = by_chance(steps, generator)
    else:
        steps = steps + (by_chance(steps.clone(), generator) - steps) * HALF_VARIANCE
    return (steps + tiles.spread(zero, wide, tile)).clamp_(kind.least, kind.most)


def dequantised(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, tile: Tile = ROW) -> torch.Tensor:
    """The values of the codes, as float32."""
    return (codes.float() - tiles.spread(zero, codes, tile)) * tiles.spread(scale, codes, tile)


__all__ = ["INT4", "INT8", "LEAST", "ROW", "TENSOR", "UINT4", "Integers", "dequantised", "from_extremes", "group", "parameters", "quantised"]
