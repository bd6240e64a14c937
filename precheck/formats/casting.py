"""Casts of tensors to narrow float formats, in plain torch: to nearest, by chance, ending at the largest number or at Inf.

An element's spacing is a power of two that its exponent bits say, so dividing by it is exact and whole numbers remain to be rounded.
"""

from __future__ import annotations

from typing import Literal

import torch

from precheck.formats.floats import Format

Rounding = Literal["nearest", "stochastic", "noise"]
_EXPONENT = 0x7F800000
_MANTISSA = 23
_BIAS = 127
HALF_VARIANCE = 0.5**0.5
SMALLEST = -126 + 24
"""Least exponent of a format's smallest number for which float32 divides by it exactly."""


def cast(
    values: torch.Tensor, fmt: Format, *, rounding: Rounding = "nearest", saturate: bool = True, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`values` rounded to numbers of `fmt`, as float32 of the same shape.

    "nearest" ties to even. "stochastic" takes the number above with the probability that the place between the two neighbours says, drawn from
    `generator`; it is right on average. "noise" adds to each element a random error of the size that rounding to nearest makes. That is the error
    of "stochastic" over √2, since the mean of f (1 - f) is 1/6 where that of min(f, 1 - f)² is 1/12. The results are no numbers of the format then,
    but numbers of the format stay. What lies beyond `fmt.max` becomes that with `saturate`, or where the format has no Inf; otherwise Inf, from
    half a spacing beyond it on. NaN stays NaN.

    Raises ValueError for a format that float32 does not hold with room to spare (bf16, fp32, fp64, tf32).
    """
    step = spacing(values, fmt)
    wide = values.float()
    if rounding == "nearest":
        rounded = (wide / step).round_().mul_(step)
    else:
        rounded = by_chance(wide.abs().div_(step), generator).mul_(step).copysign_(wide)
    if rounding == "noise":
        held = wide.clamp(-fmt.max, fmt.max)
        return (rounded.clamp_(-fmt.max, fmt.max).sub_(held)).mul_(HALF_VARIANCE).add_(held)
    if saturate or fmt.saturates:
        return rounded.clamp_(-fmt.max, fmt.max)
    return torch.where(rounded.abs() > fmt.max, torch.full_like(rounded, float("inf")).copysign_(rounded), rounded)


def by_chance(steps: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Each element's whole number below or above it, so that the mean is the element. `steps` may be overwritten."""
    drawn = torch.rand(steps.shape, device=steps.device, generator=generator)
    return steps.add_(drawn).floor_()


def spacing(values: torch.Tensor, fmt: Format) -> torch.Tensor:
    """The distance of neighbouring numbers of `fmt` in the binade of each element, as float32; beyond `fmt.max` it goes on growing."""
    lowest = fmt.min_exponent - fmt.precision + 1
    if lowest < SMALLEST:
        raise ValueError(f"{fmt} reaches as far down as float32, which cannot round to it; cast to fp16 or to a format of 8 bits or fewer")
    exponents = values.float().contiguous().view(torch.int32) & _EXPONENT
    return exponents.sub_((fmt.precision - 1) << _MANTISSA).clamp_(min=(lowest + _BIAS) << _MANTISSA).view(torch.float32)
