"""Finds from which extremes of data a scale is computed, and to which powers.

A factor that a program intends does not depend on the data that it multiplies. So if the extremes in the factors of a result do not cancel, the
result is wrong. This holds also if a factor was multiplied by another number, such as the 1/√d of attention.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Literal

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages

Powers = dict[frozenset[int], float]
"""The power of each extreme. An extreme has a number. What is made of several in another way than by a product has theirs, and one of its own, which
is below zero."""
SEEN = 64
"""Numbers of the data that are looked at where an extreme is one number, which other data may have too."""
KEPT = ops.WHOLE_COPIES | ops.BOUNDS_BELOW | ops.MOVING | {"abs", "detach"}
"""Ops on one operand whose result is made of the same extremes."""


ScaleKind = Literal["scale", "whole", "exponent"]
"""What is made of extremes alone: a scale, one that was rounded to integers, as zero points are, or the logarithm of one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The extremes of data that a scale is made of: their numbers, and the extreme itself if it is one number and the only one. `cost`: the relative
    error of rounding, if the scale itself was quantised."""

    extremes: frozenset[int]
    greatest: torch.Tensor | None = None
    cost: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Nested:
    """Scales that are quantised themselves: what they are, and what they are made of."""

    kind: ScaleKind
    source: Source | None
    powers: Powers | None


class ScaleRoots:
    """The powers of the scales of a run."""

    def __init__(self) -> None:
        self.held: Storages[Powers] = Storages()
        self.numbers = itertools.count()
        self.known: dict[tuple[float, ...], int] = {}  # by their content

    def extreme(self, result: torch.Tensor, data: torch.Tensor) -> int:
        """`result` is an extreme of data. Returns its number, which is that of an earlier one of the same content: it is computed again."""
        number = next(self.numbers)
        flat = result.detach().float().flatten()
        seen = flat if len(flat) > 1 else data.detach().flatten()[:: max(1, data.numel() // SEEN)].float()
        if bool((seen != seen[0]).any()):
            content = *map(float, (flat.norm(), seen.norm(), seen[0], seen[-1])), len(flat), len(seen)
            number = self.known.setdefault(content, number)
        self.held.put(result, {frozenset({number}): 1.0})
        return number

    def follow(self, base: str, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
        """After an op on scales."""
        given = [self.held.get(each) for each in inputs]
        if not any(given) or any(known is None and each.dim() for known, each in zip(given, inputs, strict=True)):
            return  # of one with a dimension nothing is known; others are constants
        last = -1.0 if base in ops.RECIPROCALS else 1.0
        signs = (1.0, last) if base in ops.SCALING else (last,)  # a number that is no tensor has no power
        if base in ops.SCALING | ops.RECIPROCALS or (base in KEPT and len(given) == 1):
            made = combined((powers or {}, sign) for powers, sign in zip(given, signs, strict=False))
            self.held.put(result, made or {})
        else:
            self.held.put(result, {frozenset({-1 - next(self.numbers)}).union(*(key for powers in given for key in powers or {})): 1.0})


def combined(parts: Iterable[tuple[Powers | None, float]]) -> Powers | None:
    """The powers of a product, whose factors are each taken to a power. None if those of a factor are unknown."""
    made: Powers = {}
    for powers, exponent in parts:
        if powers is None:
            return None
        for number, power in powers.items():
            made[number] = made.get(number, 0.0) + exponent * power
    return {number: power for number, power in made.items() if power}
