"""Follows factors that are multiplied into one operand of a product and divided out of the other, as SmoothQuant's are.

Such a factor is a vector that is made of extremes of data. What a program means does not depend on it, so it must cancel in the product. The product
itself may show only one half: the other may have been divided out of a layer before. So a product with one half is recorded at the end of the run, if
nothing was divided by the factor, or if what was divided by it went through a function that is not proportional to its operand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.code_copies import Track
from precheck.observe.shadow.code_notes import Unfolded
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.replay import OpPlan
from precheck.observe.shadow.storages import Storages
from precheck.ops.registry import REGISTRY
from precheck.ops.spec import Kind

if TYPE_CHECKING:
    from precheck.observe.shadow.codes import Codes

Extremes = frozenset[int]
CURVED = (Kind.FUNCTION, Kind.EXPONENTIAL, Kind.LOGARITHM, Kind.SOFTMAX, Kind.ATTENTION)
"""Functions that are not proportional to their operand, as those of which nothing is registered, such as SiLU."""
PASSED = ops.POLYNOMIAL | ops.UNROUNDED | ops.FORMS | ops.WHOLE_COPIES | {"div"}
INVERTING = {"reciprocal", "rsqrt", "pow"}
"""Ops on a factor after which a product may be a quotient."""


@dataclasses.dataclass(frozen=True, slots=True)
class Half:
    """A product of codes, of which one operand had been multiplied by a factor."""

    place: Operation
    extremes: Extremes
    rounded: str


class Foldings:
    """The factors of a run, by the extremes that they are made of."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.divided: set[int] = set()
        self.spoiled: dict[int, str] = {}  # the op that was not proportional to what had been divided
        self.quotients: Storages[Extremes] = Storages()
        self.halves: list[Half] = []

    def divides(self, result: torch.Tensor, extremes: Extremes) -> None:
        """Data was divided by a factor that is made of `extremes`."""
        self.divided |= extremes
        self.quotients.put(result, extremes)

    def follow(self, planned: OpPlan, args: tuple[Any, ...], inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op: factors that are inverted, and what is made of quotients."""
        base = planned.base
        if base in INVERTING and not (base == "pow" and isinstance(args[1], (int, float)) and args[1] > 0):
            found = self.codes.scales.sources.get(inputs[-1])
            self.divided |= frozenset() if found is None else found.extremes
        if not self.quotients or self.quotients.get(result) is not None:
            return
        extremes = Extremes().union(*(found for found in map(self.quotients.get, inputs) if found is not None))
        if extremes and (base not in REGISTRY or REGISTRY[base].kind in CURVED):
            self.spoiled.update(dict.fromkeys(extremes, planned.base))
        elif extremes and base in PASSED and result.is_floating_point() and not self.codes.scales.made.get(result):
            self.quotients.put(result, extremes)

    def settled(self, track: Track) -> None:
        """All scales of a product have cancelled, but for factors that one operand was multiplied by before it was rounded."""
        left = track.folds - track.undone
        if track.dense and left and track.last is not None and track.multipliers == track.scales > 1:
            self.halves.append(Half(track.last, left, track.rounded))

    def finish(self) -> None:
        """At the end of the run."""
        for half in self.halves:
            through = next((self.spoiled[each] for each in sorted(half.extremes) if each in self.spoiled), "")
            if through or not half.extremes & self.divided:
                number = self.codes.mode.observation.seen
                self.codes.mode.record(dataclasses.replace(half.place, number=number, coded=Unfolded(half.rounded, through)))
        self.halves = []
