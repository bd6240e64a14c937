"""Measures what a delayed scale costs an operand. The scale is too small for data that grows, and too large after an outlier."""

from __future__ import annotations

import dataclasses

import torch

FAR = 16.0
"""Ratio of the expected greatest magnitude to the actual one from which a delayed scale is examined. Below it, a format with four exponent bits
rounds the elements that make up the norm as it would under their own scale: they lie within its normal numbers, which span 2^14."""


@dataclasses.dataclass(frozen=True, slots=True)
class Delayed:
    """The effect of a delayed scale on one operand of one call. Errors are relative to the operand's Euclidean norm."""

    kind: str  # "input", "weight" or "gradient"
    lost: float = 0.0  # error under the delayed scale
    current: float = 0.0  # error under the operand's own scale
    clipped: float = 0.0  # share of elements that became the largest number
    zeroed: float = 0.0  # share of elements that became zero, but would not under the operand's own scale
    grown: float = 1.0  # greatest magnitude, divided by the one that the scale was made for
    history: int = 0  # how many calls before the scale may be made from


def fits(now: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a greatest magnitude is close enough to the one that the scale was made for. True for 0, Inf and NaN, which no scale causes."""
    return bool((now == 0) | ~now.isfinite() | ((now <= expected) & (now * FAR >= expected)))


def delayed(kind: str, operand: torch.Tensor, made: torch.Tensor, own: torch.Tensor) -> Delayed:
    """Compares the operand as quantised under the delayed scale (`made`) with the operand as quantised under its own scale (`own`)."""
    wide = operand.float()
    norm, largest = float(wide.norm()), made.abs().amax()
    lost, current = (float((each - wide).norm()) / norm for each in (made, own))
    clipped = float(((made.abs() == largest) & (wide.abs() > largest)).float().mean())
    return Delayed(kind, lost, current, clipped, float(((made == 0) & (own != 0)).float().mean()))
