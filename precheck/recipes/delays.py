"""The cost to an operand of a scale from the calls before: too small a scale for data that grows, too large a one after an outlier."""

from __future__ import annotations

import dataclasses

import torch

FAR = 16.0
"""Times the greatest magnitude, from which what a scale was made for is looked at. Below it a format of four bits of exponent rounds the elements
that make up a norm as it does under a scale of their own. They lie within its normal numbers, which span 2^14."""


@dataclasses.dataclass(frozen=True, slots=True)
class Delayed:
    """One operand of one call under a scale of the calls before. Errors are relative to the operand's Euclidean norm."""

    kind: str  # "input", "weight" or "gradient"
    lost: float = 0.0  # error under the delayed scale
    current: float = 0.0  # and under a scale of the operand's own
    clipped: float = 0.0  # share of elements that ended at the largest number
    zeroed: float = 0.0  # and of those that ended at zero, but not under a scale of their own
    grown: float = 1.0  # greatest magnitude, over the one that the scale was made for


def fits(now: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a greatest magnitude is near enough to the one that the scale was made for. 0, Inf and NaN are no scale's fault."""
    return bool((now == 0) | ~now.isfinite() | ((now <= expected) & (now * FAR >= expected)))


def delayed(kind: str, operand: torch.Tensor, made: torch.Tensor, own: torch.Tensor, grown: float) -> Delayed:
    """`made` and `own` are `operand` as quantised under the delayed scale, and under one of its own greatest magnitude."""
    wide = operand.float()
    norm, largest = float(wide.norm()), made.abs().amax()
    lost, current = (float((each - wide).norm()) / norm for each in (made, own))
    clipped = float(((made.abs() == largest) & (wide.abs() > largest)).float().mean())
    return Delayed(kind, lost, current, clipped, float(((made == 0) & (own != 0)).float().mean()), grown)
