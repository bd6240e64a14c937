"""Follows factors that are divided out of one tensor and multiplied into another, as SmoothQuant folds them into a norm and the layers that read it.

Beside a tensor it is kept which factors it was multiplied and divided by. In a product with a tensor of which the opposite is true they cancel. Three
faults are told at the end of the run. What was divided by a factor cancels it in one product. By way of another it reaches a function that is not
proportional to its operand, or a sum with data that was not divided. Or a product of codes keeps a factor that was multiplied into one operand: a
vector that is made of extremes of data, on which no result should depend. There it must be known that the other half is missing, since it may have
been divided out of a layer before: nothing was divided by it, or what was divided went through such a function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages, whole
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.code_notes import Unfolded
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.ops.registry import REGISTRY
from precheck.ops.spec import Kind
from precheck.torch_internals import in_backward

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

Factors = frozenset[int]
CURVED = (Kind.FUNCTION, Kind.EXPONENTIAL, Kind.LOGARITHM, Kind.SOFTMAX, Kind.ATTENTION)
"""Functions that are not proportional to their operand, as those of which nothing is registered, such as SiLU."""
PASSED = ops.POLYNOMIAL | ops.UNROUNDED | ops.FORMS | ops.WHOLE_COPIES | ops.WHOLE | {"div", "_int_mm", "copysign"}
JOINING = ops.ADDITIONS | ops.JOINED | {"where"}
INVERTING = {name for name, power in ops.POWERS.items() if power < 0} | {"pow"}
"""Ops on a factor after which a product may be a quotient."""
FUSED = {"addmm", "baddbmm"}
"""Products that add their first operand."""
FEWEST = 8
"""Numbers of a vector that may be a factor for each channel."""


@dataclasses.dataclass(frozen=True, slots=True)
class Units:
    """The factors that a tensor was multiplied and divided by, and that have not cancelled. `mixed`: it is a sum of what was divided by them and what
    was not. `lost`: factors of which it is not known, as where a part of it was divided by them."""

    times: Factors = frozenset()
    over: Factors = frozenset()
    mixed: bool = False
    lost: Factors = frozenset()

    def __mul__(self, other: Units) -> Units:
        times, over = self.times | other.times, self.over | other.over
        return Units(times - over, over - times, (self.mixed or other.mixed) and bool(over - times), self.lost | other.lost)

    def inverse(self) -> Units:
        return dataclasses.replace(self, times=self.over, over=self.times)

    def unknown(self) -> Units:
        return Units(lost=self.times | self.over | self.lost)


class Foldings:
    """The factors of a run. A factor that is made of extremes of data has their numbers, any other vector a number of its own."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[Units] = Storages()
        self.named: Storages[Factors] = Storages()
        self.inverse: Storages[bool] = Storages()  # factors that are the inverse of one
        self.direct: Storages[bool] = Storages()  # what was multiplied or divided by a factor itself, as a quantiser does
        self.divided: set[int] = set()
        self.paired: set[int] = set()  # factors that have cancelled in a product
        self.read: list[tuple[Operation, Factors]] = []  # functions that are not proportional to what had been divided
        self.sums: list[tuple[Operation, Factors]] = []  # sums of what had been divided and data that had not
        self.halves: list[tuple[Operation, Factors, str]] = []  # products of codes with factors that were multiplied into an operand
        self.waiting: Track | None = None

    def begins(self, base: str, args: tuple[Any, ...]) -> bool:
        """Whether a vector is divided by, with a number for each channel or row."""
        if base != "div" or not all(isinstance(each, torch.Tensor) for each in args[:2]):
            return False
        data, by = args[:2]
        lengths = zip(data.shape[::-1], by.shape[::-1], strict=False)
        return FEWEST <= by.numel() and by.dim() <= data.dim() and any(by.numel() == own == length for length, own in lengths)

    def settled(self, track: Track) -> None:
        """The scales of codes have cancelled in the result of this op."""
        self.waiting = track if track.dense and track.multipliers == track.scales > 1 else None

    def follow(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op."""
        base, args, made, track = op.base, op.args, self.codes.scales.made, self.waiting
        self.waiting = None
        if made.get(result) or self.named.get(result):
            self._inverted(base, args, inputs, result)
            return
        if not self.held and not made and base != "div":
            return
        if base in REGISTRY and REGISTRY[base].kind is Kind.NORMALIZATION:
            base, inputs = "add", [each for each in (op.argument("weight"), op.argument("bias")) if isinstance(each, torch.Tensor)]
        mixed = self._summed(op, inputs) if base in ops.ADDITIONS and len(inputs) == 2 else None
        units = mixed or self._of(base, args, inputs, result)
        if units is None or result.dtype is torch.bool or (not whole(result) and self.held.get(result) != units):
            self._keep(result, functools.reduce(Units.__mul__, filter(None, map(self.held.get, inputs)), Units()).unknown())
            return
        if base in PASSED:
            self._keep(result, units)
            if track is not None and units.times and track.last is not None:
                self.halves.append((track.last, units.times, track.rounded))
            return
        if units.over and not units.mixed and result.is_floating_point() and (base not in REGISTRY or REGISTRY[base].kind in CURVED):
            self.read.append((self.codes.described(op.plan.name), units.over))  # integers are places
        self._keep(result, units.unknown())

    def _keep(self, result: torch.Tensor, units: Units) -> None:
        if units == Units():
            self.held.drop(result)
        else:
            self.held.put(result, units)

    def _summed(self, op: OpCall, terms: Sequence[torch.Tensor]) -> Units | None:
        """After a sum: notes factors that one term was divided by and the other was not, and returns them. A product that multiplies the sum by them
        tells that they were meant. A gradient may be added to anything, and what was scaled by them gets noise or a zero
        point."""
        made, scaled = self.codes.scales.made, self.codes.scaled
        for term, other in (terms, terms[::-1]) if not op.plan.written and not in_backward() else ():
            own = scaled.get(term) and self.direct.get(term)
            units, apart = self.held.get(term), not (made.get(other) or own or self.held.get(other))
            if units is not None and units.over and apart and other.is_floating_point() and bool(other.any()):
                self.sums.append((self.codes.described(op.plan.name), units.over))
                return Units(frozenset(), units.over, mixed=True)
        return None

    def _known(self, factor: torch.Tensor) -> Factors:
        """The numbers of a factor. Nothing if it is none."""
        found = self.codes.scales.sources.get(factor) if self.codes.scales.made.get(factor) else None
        return (self.named.get(factor) or frozenset()) if found is None else found.extremes

    def _inverted(self, base: str, args: tuple[Any, ...], inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op on factors: whether its result is the inverse of a factor."""
        turned = base in INVERTING and not (base == "pow" and isinstance(args[1], (int, float)) and args[1] > 0)
        if base == "div":  # a number over a factor is its inverse, a factor over a number is none
            turned = len(inputs) == 2 and not self._known(inputs[0])
            inputs = inputs[1:] if turned else inputs[:1]
        if turned != any(bool(self.inverse.get(each)) for each in inputs):
            self.inverse.put(result, True)
            self.divided |= self._known(inputs[-1])

    def _of(self, base: str, args: tuple[Any, ...], inputs: Sequence[torch.Tensor], result: torch.Tensor) -> Units | None:
        """The units of a result. None if they are not known."""
        if base in ("mul", "div") and len(inputs) == 2:
            if self.begins(base, args) and not self._known(inputs[1]) and not any(map(self.codes.scales.made.get, inputs)):
                self.named.put(inputs[1], frozenset({next(self.codes.scales.roots.numbers)}))
            for data, factor in (inputs, inputs[::-1])[: 1 if base == "div" else 2]:
                if (known := self._known(factor)) and not self._known(data):
                    over = (base == "div") != bool(self.inverse.get(factor))
                    self.divided |= known if over else frozenset()
                    made = (self.held.get(data) or Units()) * (Units(frozenset(), known) if over else Units(known))
                    self.direct.put(result, True)
                    return made
        inputs = inputs[:1] if base == "copysign" else inputs[base in FUSED or base == "copy" :]  # a sign has no factor
        given = [self.held.get(each) for each in inputs]
        if not any(given):
            return None
        if base in JOINING:
            return given[0] if len(set(given)) == 1 else None
        known_units = [each or Units() for each in given]
        if base == "div" and len(known_units) == 2:
            known_units[1] = known_units[1].inverse()
        if base in ops.PRODUCTS and len(known_units) > 1:
            self.paired |= known_units[0].times & known_units[1].over | known_units[0].over & known_units[1].times
        made = Units()
        for each in known_units:
            made = made * each
        return made

    def finish(self) -> None:
        """At the end of the run."""
        for place, over in self.read:
            if over & self.paired:
                self.codes.note(place, Unfolded("", place.name))
        for place, over in self.sums if self.codes.lines.codes else ():
            if over & self.paired:
                self.codes.note(place, Unfolded("", "", summed=True))
        for place, times, rounded in self.halves:
            through = next((read.name for read, over in self.read if over & times), "")
            if through or not times & self.divided:
                self.codes.note(place, Unfolded(rounded, through))
        self.read, self.sums, self.halves = [], [], []
