"""Casts to NVFP4: blocks of 16 e2m1 elements with an e4m3 scale, and one float32 scale for the tensor (NVIDIA, arXiv 2509.25149).

Casts equal `torchao.prototype.mx_formats.nvfp4_tensor.nvfp4_quantize`, bit for bit.
"""

from __future__ import annotations

import torch

from precheck.formats import tiles
from precheck.formats.casting import Rounding, cast
from precheck.formats.floats import E2M1, E4M3FN
from precheck.formats.tiles import Tile

BLOCK = 16
SQUARE = Tile(BLOCK, BLOCK)
"""The tile for weights in training. A transposed weight has the same scales."""


def tensor_scale(amax: torch.Tensor) -> torch.Tensor:
    """The scale of a tensor: amax / (448 · 6), so that the scale of its largest block is the largest e4m3 number. 1 if amax is zero."""
    found = amax.float() / (E4M3FN.max * E2M1.max)
    return torch.where(found == 0, torch.ones_like(found), found)


def quantised(
    values: torch.Tensor, *, over: torch.Tensor | None = None, tile: Tile | None = None, rounding: Rounding = "nearest",
    generator: torch.Generator | None = None, greatest: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The elements, numbers of e2m1 as float32 in the shape of `values`, and the scale of each block, numbers of e4m3 as a matrix of float32.

    `over`: the scale of the tensor. None: only the blocks have scales. `tile`: the elements that share a scale. None: 16 along the last dimension.
    `greatest`: the greatest magnitude of each tile, where it is known.
    """
    tile = tile or Tile(1, BLOCK)
    wide = values.float()
    scales = block_scales(tiles.amax(wide, tile) if greatest is None else greatest, over)
    inverse = 1.0 / scales if over is None else (1.0 / over) / scales
    return cast(tiles.times(wide, inverse, tile), E2M1, rounding=rounding, generator=generator), scales


def block_scales(greatest: torch.Tensor, over: torch.Tensor | None = None) -> torch.Tensor:
    """The scales of tiles with these greatest magnitudes: numbers of e4m3, as float32. `over` is the scale of the tensor."""
    wanted = greatest / E2M1.max if over is None else greatest / E2M1.max / over
    return cast(wanted.clamp(E4M3FN.min_normal, E4M3FN.max), E4M3FN)


def dequantised(elements: torch.Tensor, scales: torch.Tensor, over: torch.Tensor | None = None, tile: Tile | None = None) -> torch.Tensor:
    """The values of the elements, as float32."""
    each = scales if over is None else scales * over
    return tiles.times(elements, each, tile or Tile(1, BLOCK))
