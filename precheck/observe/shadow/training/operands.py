"""Classifies the operands of an op under a loss scale: zeros, guards against a division by zero, thresholds, numbers that matter."""

from __future__ import annotations

import math
from typing import Any

import torch

EPSILON = 1e-6
"""Bounds up to this guard against a division by zero. Torch's own are between 1e-6 (gradient clipping) and 1e-12 (normalisation)."""
SEEN = 2.0**-11
"""A number added to a quantity matters from this share of it: below lies float16's rounding."""
CLOSE = 1e-5
"""Relative difference up to which two factors are equal. Scales are powers of two with exact reciprocals; roots and products are nearly exact."""
SHORT = 3
"""Most digits of a threshold that people write. Of random numbers with seven digits, one in ten thousand has so few."""


def quotient(number: float, read: float, factor: float) -> bool:
    """Whether a number is a short threshold divided by a number that was read from a tensor with that factor.

    1 over a norm is one. A threshold that was multiplied by the scale is not: it has fewer digits without the scale.
    """
    over = number * read
    return digits(number) > 2 * SHORT and 0 < digits(over, 7) <= SHORT and digits(over, 7) < digits(over / factor, 7)


def digits(number: float, of: int = 12) -> int:
    """How many significant digits a number has in decimal, out of `of`."""
    return len(f"{number:.{of - 1}e}".partition("e")[0].replace(".", "").lstrip("-").rstrip("0"))


def guards(tensor: Any, bound: Any) -> bool:
    """Whether a lower bound only guards against a division by zero, as in a cosine: it is tiny, and no element is below it."""
    least = float(bound.max()) if isinstance(bound, torch.Tensor) and bound.numel() else bound
    return isinstance(least, float) and 0 < least <= EPSILON and isinstance(tensor, torch.Tensor) and not bool((tensor.detach() < least).any())


def matters(values: list[Any], factor: float) -> bool:
    """Whether a number added to a scaled tensor is large enough to matter beside the unscaled content. An epsilon is not."""
    tensor, number = next((each for each in values if isinstance(each, torch.Tensor)), None), next((each for each in values if plain(each)), 0)
    if tensor is None or abs(number) <= EPSILON or not math.isfinite(number):
        return False
    return abs(number) >= SEEN * float(tensor.detach().abs().max()) / factor if tensor.numel() else False


def part(tensor: torch.Tensor) -> bool:
    """Whether a tensor is only a part of its storage."""
    return tensor.layout is torch.strided and tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()


def plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool)


def same(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


def nothing(tensor: torch.Tensor) -> bool:
    """Whether all is zero, as in a fresh accumulator. Zero is the same under any scale."""
    return not bool(tensor.detach().any())
