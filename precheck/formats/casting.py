"""Casts of tensors to narrow float formats, in plain torch: to nearest, by chance, ending at the largest number or at Inf.

An element's spacing is a power of two that its exponent bits say, so dividing by it is exact and whole numbers remain to be rounded.
"""

from __future__ import annotations

from typing import Literal

import torch

from precheck.formats.floats import Format

Rounding = Literal["nearest", "stochastic"]
_EXPONENT = 0x7F800000
_MANTISSA = 23
_BIAS = 127
SMALLEST = -126 + 24
"""Least exponent of a format's smallest number for which float32 divides by it exactly."""


def cast(
    values: torch.Tensor, fmt: Format, *, rounding: Rounding = "nearest", saturate: bool = True, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`values` rounded to numbers of `fmt`, as float32 of the same shape.

    "nearest" ties to even. "stochastic" takes the number above with the probability that the place between the two neighbours
    says, drawn from `generator`; it is right on average. What lies beyond `fmt.max` becomes that with `saturate`, or where the
    format has no Inf; otherwise Inf, from half a spacing beyond it on. NaN stays NaN.

    Raises ValueError for a format that float32 does not hold with room to spare (bf16, fp32, fp64, tf32).
    """
    step = spacing(values, fmt)
    wide = values.float()
    if rounding == "stochastic":
        drawn = torch.rand(wide.shape, device=wide.device, generator=generator)
        rounded = (wide.abs() / step).add_(drawn).floor_().mul_(step).copysign_(wide)
    else:
        rounded = (wide / step).round_().mul_(step)
    if saturate or fmt.saturates:
        return rounded.clamp_(-fmt.max, fmt.max)
    return torch.where(rounded.abs() > fmt.max, torch.full_like(rounded, float("inf")).copysign_(rounded), rounded)


def spacing(values: torch.Tensor, fmt: Format) -> torch.Tensor:
    """The distance of neighbouring numbers of `fmt` in the binade of each element, as float32; beyond `fmt.max` it goes on growing."""
    lowest = fmt.min_exponent - fmt.precision + 1
    if lowest < SMALLEST:
        raise ValueError(f"{fmt} reaches as far down as float32, which cannot round to it; cast to fp16 or to a format of 8 bits or fewer")
    exponents = values.float().contiguous().view(torch.int32) & _EXPONENT
    return (exponents - ((fmt.precision - 1) << _MANTISSA)).clamp_(min=(lowest + _BIAS) << _MANTISSA).view(torch.float32)
