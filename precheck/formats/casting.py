"""Rounds tensors to narrow float formats in plain torch: to nearest or stochastically, with saturation or Inf.

The spacing at an element is a power of two that follows from its exponent bits. So division by it is exact, and then rounding to whole numbers is
enough.
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
"""The least exponent of a format's smallest number for which division in float32 is exact."""


def cast(
    values: torch.Tensor, fmt: Format, *, rounding: Rounding = "nearest", saturate: bool = True, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`values` rounded to numbers of `fmt`, as float32 of the same shape.

    "nearest" ties to even. "stochastic" takes the number above with the probability that the place between the two neighbours says, drawn from
    `generator`; its mean error is zero. "noise" adds to each element a random error of the size that rounding to nearest makes. That is the error
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
    """Rounds each element to a neighbouring whole number stochastically, so that the mean is the element. May overwrite `steps`."""
    drawn = torch.rand(steps.shape, device=steps.device, generator=generator)
    return steps.add_(drawn).floor_()


def spacing(values: torch.Tensor, fmt: Format) -> torch.Tensor:
    """The spacing of `fmt` in the binade of each element, as float32. It goes on growing beyond `fmt.max`."""
    lowest = fmt.min_exponent - fmt.precision + 1
    if lowest < SMALLEST:
        raise ValueError(f"{fmt} reaches as far down as float32, which cannot round to it; cast to fp16 or to a format of 8 bits or fewer")
    exponents = values.float().contiguous().view(torch.int32) & _EXPONENT
    return exponents.sub_((fmt.precision - 1) << _MANTISSA).clamp_(min=(lowest + _BIAS) << _MANTISSA).view(torch.float32)
