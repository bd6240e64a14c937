"""Casts to microscaling formats: blocks of 32 elements with a power-of-two scale (OCP Microscaling Formats 1.0, 2023).

The scale is an E8M0 number: a byte e with the value 2^(e - 127), or NaN for 255. `Mode` says how it is computed from the block's largest
magnitude. Casts equal `torchao.prototype.mx_formats`, bit for bit.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from precheck.formats import tiles
from precheck.formats.casting import Rounding, cast
from precheck.formats.floats import Format
from precheck.formats.tiles import Tile

Mode = Literal["floor", "ceil", "even", "rceil"]
"""How a scale is rounded to a power of two.

"floor" is the specification's (section 6.3): the exponent of the greatest magnitude less that of the largest element. The greatest may then lie
beyond the largest element, and is clipped. "even" rounds the greatest to the element's bits first. "ceil" and "rceil" never clip: the power of two
at or above amax / 2^emax, or at or above amax / max, which is cuBLAS's and Transformer Engine's.
"""
BLOCK = 32
BIAS = 127
NAN = 255
_MANTISSA = 23
_TINY = 2.0**-126


def exponents(amax: torch.Tensor, fmt: Format, mode: Mode = "floor") -> torch.Tensor:
    """The E8M0 bytes, as int32, for blocks of elements of `fmt` with these greatest magnitudes."""
    amax = amax.float()
    if mode == "rceil":
        return _rounded_up(amax / fmt.max)
    bits = amax.contiguous().view(torch.int32)
    if mode == "even":
        bits = (bits + (1 << (_MANTISSA - fmt.precision))) & (0x1FF << _MANTISSA)
    power = ((bits >> _MANTISSA) & 0xFF) - BIAS
    if mode == "ceil":
        power = power + ((bits & ((1 << _MANTISSA) - 1)) > 0)
    largest = fmt.max_exponent
    biased = (power - largest).clamp(-BIAS, BIAS + 1) + BIAS
    return torch.where(amax.isnan(), NAN, biased)


def _rounded_up(quotient: torch.Tensor) -> torch.Tensor:
    biased = torch.log2(quotient).ceil_().clamp_(-BIAS, BIAS) + BIAS
    biased = torch.where(quotient.isinf(), float(NAN - 1), biased)
    return torch.where(quotient.isnan(), float(NAN), biased).to(torch.int32)


def scales(biased: torch.Tensor) -> torch.Tensor:
    """The values of E8M0 bytes, as float32; NaN for 255."""
    return torch.where(biased == NAN, math.nan, torch.exp2((biased - BIAS).float()))


def quantised(
    values: torch.Tensor, fmt: Format, *, mode: Mode = "floor", tile: Tile | None = None, rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The elements, numbers of `fmt` as float32 in the shape of `values`, and the E8M0 byte of each block as a matrix of int32.

    `tile`: the elements that share a scale. None: 32 along the last dimension.
    """
    tile = tile or Tile(1, BLOCK)
    wide = values.float()
    biased = exponents(tiles.amax(wide, tile), fmt, mode)
    if mode == "rceil":
        inverse = torch.where(biased == 0, 1.0, torch.exp2((BIAS - biased).float()))
        scaled = tiles.times(wide, torch.where(biased == NAN, math.nan, inverse), tile)
    else:
        scaled = wide / tiles.spread(scales(biased).clamp_(min=_TINY), wide, tile)
    return cast(scaled, fmt, rounding=rounding, generator=generator), biased


def dequantised(elements: torch.Tensor, biased: torch.Tensor, tile: Tile | None = None) -> torch.Tensor:
    """The values of the elements with these scales, as float32."""
    return tiles.times(elements, scales(biased), tile or Tile(1, BLOCK))
