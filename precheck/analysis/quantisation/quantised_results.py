"""Compares the output of a quantised layer with that of its own dequantised weight in float32: is the difference rounding, or a wrong product?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from precheck.analysis.limit import Limit
from precheck.formats import E2M1, E2M3, E3M2, E4M3FN, ONE_ROUNDING, integers, mx, nvfp4, scaled
from precheck.formats.tiles import ROW, TENSOR

KERNEL = Limit(3.0, "times what rounding explains")
"""The largest error of a layer whose kernel quantises its input. What rounding explains is measured on this very input: storing the result, and
quantising the input."""
MODES: tuple[mx.Mode, ...] = ("floor", "ceil", "even", "rceil")


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
    made = []
    for tile in (ROW, TENSOR):
        for symmetric in (True, False):
            scale, zero = integers.parameters(wide, integers.INT8, tile=tile, symmetric=symmetric)
            made.append(integers.dequantised(integers.quantised(wide, integers.INT8, scale, zero, tile), scale, zero, tile))
    return made


def _floats(wide: torch.Tensor) -> list[torch.Tensor]:
    blocks = mx.dequantised(*mx.quantised(wide, E4M3FN))
    return [blocks, *(scaled.dequantised(*scaled.quantised(wide, E4M3FN, tile=tile), tile) for tile in (ROW, TENSOR))]
