"""Finds from which greatest magnitudes of data a scale of one number is computed, and to which powers.

A factor that a program intends does not depend on the data that it multiplies. So if the magnitudes in the factors of a result do not cancel, the
result is wrong. This holds also if a factor was multiplied by another number, such as the 1/√d of attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from precheck import ops
from precheck.observe.shadow.storages import Storages

Powers = dict[int, float]
"""The power of each greatest magnitude, by its number."""
KEPT = ops.WHOLE_COPIES | ops.BOUNDS_BELOW | {"abs", "detach"}
"""Ops on one operand whose result is made of the same magnitudes."""


class ScaleRoots:
    """The powers of the scales of one number."""

    def __init__(self) -> None:
        self.held: Storages[Powers] = Storages()
        self.numbers = itertools.count()

    def extreme(self, result: torch.Tensor) -> None:
        """`result` is a greatest magnitude."""
        if result.numel() == 1:
            self.held.put(result, {next(self.numbers): 1.0})

    def follow(self, base: str, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
        """After an op on scales."""
        given = [self.held.get(each) for each in inputs]
        if result.numel() != 1 or not any(given):
            return
        if any(known is None and each.dim() for known, each in zip(given, inputs, strict=True)):
            return  # a tensor of which nothing is known; numbers without a dimension are constants
        last = -1.0 if base in ops.RECIPROCALS else 1.0
        signs = (1.0, last) if base in ops.SCALING else (last,)  # a number that is no tensor has no power
        if base in ops.SCALING | ops.RECIPROCALS or (base in KEPT and len(given) == 1):
            made = combined((powers or {}, sign) for powers, sign in zip(given, signs, strict=False))
            self.held.put(result, made or {})


def combined(parts: Iterable[tuple[Powers | None, float]]) -> Powers | None:
    """The powers of a product, whose factors are each taken to a power. None if those of a factor are unknown."""
    made: Powers = {}
    for powers, exponent in parts:
        if powers is None:
            return None
        for number, power in powers.items():
            made[number] = made.get(number, 0.0) + exponent * power
    return {number: power for number, power in made.items() if power}
