"""Tells results that are cut off to the stored format from results that are rounded to nearest.

One number that is cut off is off by less than one spacing of its format, as two roundings may be. But all are off towards zero.
"""

from __future__ import annotations

import torch

from precheck import formats
from precheck.analysis.limit import Limit

APART = Limit(1 / 20, "of a spacing")
"""How far a number has to be from both neighbours in the format, so that errors of float32 do not change which is below it."""
NUMBERS = Limit(64, "different numbers")
"""The fewest different numbers for a verdict; all of them have to be cut off. Rounded to nearest, half are the upper neighbour. Equal numbers round
alike, and count once. If something that all share was rounded before, all move by up to half or one spacing, and about a quarter are not the one
below."""
CUT_OFF, TWICE = "the tensor, cut off and not rounded,", 2.0
"""The name, in messages, of a tensor whose numbers are all cut off, and its error beside rounding to nearest: each is up to one spacing off."""


def cut_off(exact: torch.Tensor, result: torch.Tensor, fmt: formats.Format) -> bool:
    """Whether `result`, stored in `fmt`, is `exact` with its lower bits cut off. `exact`: in float64."""
    if not result.is_floating_point() or fmt.precision >= 24:
        return False
    size, got = exact.abs(), result.double()
    _, exponent = torch.frexp(size)
    spacing = torch.ldexp(torch.ones_like(size), exponent - fmt.precision)
    lower = (size / spacing).floor() * spacing
    share = (size - lower) / spacing
    normal = size.isfinite() & (size >= fmt.min_normal) & (size < fmt.max)
    between = normal & (share > APART) & (share < 1 - APART)
    different = len(size[between].float().unique())  # equal ones differ by roundings of float64
    return different >= NUMBERS and bool((got.abs() == lower)[between].all())
