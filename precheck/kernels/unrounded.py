"""What rounding leaves as it is: whole numbers and their sums, products with powers of two, elements that an op chose."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.exact import widened
from precheck.torch_internals import schema

_WHOLE = 2.0**24
"""The bound below which float32 holds every integer."""


def kept(value: torch.Tensor, moved: torch.Tensor, unit: float = 1.0) -> torch.Tensor:
    """`moved`, except where `value` is a multiple of `unit` other than 0. At 0 an op may select either side.

    Sums of such multiples are exact in float32, as those of integers are. So where a number is rounded by adding a half and taking the floor, one
    that lies halfway has one right side.
    """
    wide = widened(value)
    if wide.is_complex():
        return moved
    return torch.where((wide % unit == 0) & (wide != 0) & (wide.abs() < _WHOLE * unit), wide, moved)


def countable(value: torch.Tensor) -> bool:
    """Whether all are whole numbers, whose sums float32 holds in every order."""
    wide = value.detach().double() if not value.is_complex() else None
    return wide is not None and bool((wide == wide.round()).all()) and float(wide.abs().sum()) < _WHOLE


def chosen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The elements that an op chose, as they were before they were disturbed: rounding may change which are chosen, and not what they are."""
    named = dict(zip((each.name for each in schema(func).arguments), args, strict=False)) | kwargs
    whole: torch.Tensor = widened(args[0])
    dim = named.get("dim", -1)
    if not isinstance(dim, int) or places.dtype != torch.int64 or not whole.dim() or values.dtype != whole.dtype:
        return values
    return whole.gather(dim, places) if places.dim() == whole.dim() else whole.gather(dim, places.unsqueeze(dim)).squeeze(dim)


def scales(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an op multiplies or divides by powers of two, which is exact in every implementation."""
    return name in ("mul", "div") and not kwargs and any(_shifts(each) for each in (args[1:] if name == "div" else args))


def _shifts(value: Any) -> bool:
    """Whether each number is a power of two or 0."""
    numbers = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
    if numbers.is_complex() or numbers.dtype is torch.bool or not bool(numbers.isfinite().all()):
        return False
    return bool((torch.frexp(numbers.double()).mantissa.abs() % 0.5 == 0).all())
