"""What operands are to an op under a loss scale: nothing at all, a guard against a division by zero, or a number that matters beside them."""

from __future__ import annotations

import math
from typing import Any

import torch

EPSILON = 1e-6
"""Bounds up to this are against a division by zero: torch's own are from 1e-6 (what clips gradients) down to 1e-12 (what makes unit vectors)."""
SEEN = 2.0**-11
"""Share of a quantity from which a number that is added to it is more than float16's rounding of it."""
CLOSE = 1e-5
"""Relative difference up to which two factors are one: scales are powers of two, their reciprocals exact, roots and products near so."""
SHORT = 3
"""Digits of a threshold, as people write them. A number of seven digits that come by chance has so few once in ten thousand."""


def quotient(number: float, read: float, factor: float) -> bool:
    """Whether a number is a short one, as people write them, over another that was read from a tensor of that factor.

    A threshold of 1 over a norm is. That which was multiplied by the scale is not: it is shorter without.
    """
    over = number * read
    return digits(number) > 2 * SHORT and 0 < digits(over, 7) <= SHORT and digits(over, 7) < digits(over / factor, 7)


def digits(number: float, of: int = 12) -> int:
    """Significant digits, of twelve."""
    return len(f"{number:.{of - 1}e}".partition("e")[0].replace(".", "").lstrip("-").rstrip("0"))


def guards(tensor: Any, bound: Any) -> bool:
    """Whether a lower bound is there against a division by zero only, as a cosine's is: tiny, and below all that it bounds."""
    least = float(bound.max()) if isinstance(bound, torch.Tensor) and bound.numel() else bound
    return isinstance(least, float) and 0 < least <= EPSILON and isinstance(tensor, torch.Tensor) and not bool((tensor.detach() < least).any())


def matters(values: list[Any], factor: float) -> bool:
    """Whether a number that is added to a scaled tensor would be seen beside what that holds without its scale: an epsilon would not."""
    tensor, number = next((each for each in values if isinstance(each, torch.Tensor)), None), next((each for each in values if plain(each)), 0)
    if tensor is None or abs(number) <= EPSILON or not math.isfinite(number):
        return False
    return abs(number) >= SEEN * float(tensor.detach().abs().max()) / factor if tensor.numel() else False


def part(tensor: torch.Tensor) -> bool:
    """Whether it is a view of more than it shows."""
    return tensor.layout is torch.strided and tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()


def plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool)


def same(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


def nothing(tensor: torch.Tensor) -> bool:
    """All zero, as a fresh accumulator is: zero is the same under any scale."""
    return not bool(tensor.detach().any())
