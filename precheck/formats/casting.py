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
"""The error of rounding to nearest over that of rounding by chance: min(f, 1 - f)² has a mean of 1/12 where f (1 - f) has one of 1/6."""
SMALLEST = -126 + 24
"""The least exponent of a format's smallest number for which division in float32 is exact."""


def cast(
    values: torch.Tensor, fmt: Format, *, rounding: Rounding = "nearest", saturate: bool = True, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`values` rounded to numbers of `fmt`, as float32 of the same shape.

    "nearest" ties to even. "stochastic" takes the number above with the probability that the place between the two neighbours says, drawn from
    `generator`; its mean error is zero. What lies beyond `fmt.max` becomes that with `saturate`, or where the format has no Inf; otherwise Inf, from
    half a spacing beyond it on. NaN stays NaN.

    "noise" makes errors as rounding to nearest does, and others: each element is rounded to nearest on a grid of its own, which is that of `fmt`
    times a number drawn between 2^-1/2 and 2^1/2. Where the grid lies is as good as drawn, since a scale puts it there. Such errors have the size of
    those of rounding, and follow the elements as those do: what is far below the smallest number becomes zero on every grid. Independent errors would
    cancel in a sum of thousands, where what was rounded to zero is missing. The results are no numbers of the format then, but numbers of the format
    stay.

    Raises ValueError for a format that float32 does not hold with room to spare (bf16, fp32, fp64, tf32).
    """
    step = spacing(values, fmt)
    wide = values.float()
    if rounding == "stochastic":
        rounded = by_chance(wide.abs().div_(step), generator).mul_(step).copysign_(wide)
    else:
        rounded = (wide / step).round_().mul_(step)
    if rounding == "noise":
        return _on_other_grids(wide, rounded, fmt, generator)
    if saturate or fmt.saturates:
        return rounded.clamp_(-fmt.max, fmt.max)
    return torch.where(rounded.abs() > fmt.max, torch.full_like(rounded, float("inf")).copysign_(rounded), rounded)


def _on_other_grids(wide: torch.Tensor, rounded: torch.Tensor, fmt: Format, generator: torch.Generator | None) -> torch.Tensor:
    """Each element rounded to nearest on a grid by chance, but for those that `rounded` has left as they were. None ends beyond the largest."""
    factor = torch.rand(wide.shape, device=wide.device, generator=generator).sub_(0.5).exp2_()
    moved = wide * factor
    step = spacing(moved, fmt)
    other = moved.div_(step).round_().mul_(step).div_(factor).clamp_(-fmt.max, fmt.max)
    return torch.where(rounded == wide, wide.clamp(-fmt.max, fmt.max), other)


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
