"""Holds decoded numbers against the data that was rounded, in whatever way codes were packed, moved and taken out again.

What is made of codes, their scales and constants alone stands for the data. It may be in another order, so both are sorted. By the rearrangement
inequality no order brings two sets of numbers closer together. Where they are further apart than rounding explains, the data is decoded wrongly.
Where most numbers are those of the data in their places, the order is known, and the rest must be in their places too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages, plain, whole
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.bit_origins import BITS
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.code_notes import Misread
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

SCALED = ops.SCALING | {"addcmul"}
ELEMENTWISE = BITS | ops.ADDITIONS | SCALED | ops.MOVING | ops.WHOLE_COPIES | ops.CASTS | ops.FORMS | ops.COMPARED | ops.CUTS | {"copy"}
LARGEST = 1 << 22
"""Elements of a tensor that is still looked at."""
SPACING = 2.0**-4
"""The largest relative error of rounding to e4m3, beside half a step of integers."""
ALIKE = 0.01
"""Relative difference below which the same codes have been decoded in the same way."""


@dataclasses.dataclass(slots=True, eq=False)
class CodeSet:
    """One set of codes, and the data that they stand for."""

    track: Track
    size: int
    rounding: float  # the error of the codes, over the norm of the data
    data: list[torch.Tensor] = dataclasses.field(default_factory=list)  # sorted; there may be alternatives


@dataclasses.dataclass(slots=True)
class Decoded:
    """What is made of a set of codes. `extremes`: what its scales are made of. `off`: its distance from the data, where it should be the data."""

    book: CodeSet
    extremes: frozenset[int] = frozenset()
    scaled: bool = False
    beside: float = 0.0  # the relative error of its scales
    off: float = 0.0
    place: Operation | None = None


class DecodedData:
    """The decoded numbers of a run."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[Decoded] = Storages()
        self.wrong: dict[str, Decoded] = {}  # by the line that made the codes
        self.parts: set[str] = set()  # lines whose codes are decoded in different ways, such as by halves of their bits

    def follow(self, op: OpCall, result: torch.Tensor) -> None:
        """After an op."""
        track, scales = self.codes.tracks.get(result), self.codes.scales
        if track is None and not self.held and not self.wrong:
            return
        inputs = list(filter(plain, tensors_in(*op.args[op.base == "copy" :])))
        known = [(each, found) for each in inputs if (found := self.held.get(each)) is not None]
        if track is not None and track.units and track.sources and track.cost is not None and (not known or op.base.startswith("clamp")):
            last = -1 - track.offset
            error = torch.nan_to_num((result.float() - track.exact.seen(result)) * track.units[last].seen(result))  # 0 / 0 may be put right later
            rounding = float(error.norm() / track.plains[last].seen(result).norm().clamp_min(1e-30))
            self.held.put(result, Decoded(CodeSet(track, result.numel(), rounding)))
            return
        others = [each for each in inputs if all(each is not source for source, _ in known)]
        given = [made for each in others if scales.made.get(each) and (made := scales.sources.get(each)) is not None]
        extremes = frozenset[int]().union(*(each.extremes for each in given))
        if not known:
            if given and self.wrong and op.base in SCALED | ops.PRODUCTS:  # what was read was not yet to be the data
                self.wrong = {line: each for line, each in self.wrong.items() if each.book.track.sources.isdisjoint(extremes)}
            return
        before = self.held.get(result)
        self.held.drop(result)
        foreign = [each for each in others if each.is_floating_point() and each.numel() > 1 and not scales.made.get(each)]
        looked_up = op.base in ops.MOVING and len(foreign) == 1 and foreign[0] is inputs[0] and not any(each.is_floating_point() for each, _ in known)
        if op.base not in ELEMENTWISE and (op.base != "sum" or result.is_floating_point()):
            for found in (found for _, found in known if found.off and op.base not in ops.CHOOSERS | ops.FRESH):
                before = self.wrong.setdefault(found.book.track.rounded, found)
                if before.book is found.book and abs(before.off - found.off) > ALIKE * found.off:
                    self.parts.add(found.book.track.rounded)
        elif len({id(found.book) for _, found in known}) == 1 and (not foreign or looked_up) and (
            whole(result) or op.base in ops.FORMS or (op.base == "copy" and (before is None or before.book is known[0][1].book))
        ):
            decoded = dataclasses.replace(known[0][1], extremes=extremes.union(*(found.extremes for _, found in known)), off=0.0)
            decoded.beside = max(each.beside for _, each in known) + max((each.cost for each in given), default=0.0)
            decoded.scaled = any(found.scaled for _, found in known) or (bool(given) and op.base in SCALED)
            self._compared(op, decoded, result)

    def _compared(self, op: OpCall, made: Decoded, result: torch.Tensor) -> None:
        """Keeps what is made of codes, unless it is the data."""
        track = made.book.track
        complete = made.scaled and made.extremes == track.sources and result.is_floating_point()
        if complete and result.numel() == made.book.size <= LARGEST:
            offset = op.args[0] if op.base == "addcmul" else 0.0  # this may have been subtracted before the data was scaled
            off = min(self._distance(made.book, each) for each in {id(each): each for each in (result, result - offset)}.values())
            if off <= 2 * (made.book.rounding + made.beside):
                return
            made.off, made.place = off, self.codes.described(op.plan.name)
        self.held.put(result, made)

    def _distance(self, book: CodeSet, result: torch.Tensor) -> float:
        """The distance of decoded numbers from the data: in their places, if most of those are there that would not be by chance, as in the opposite
        order. Else both are sorted, and one factor for all of them is let go, which a program may mean."""
        copies = [each.numbers for each in book.track.plains]
        norms = [max(float(each.norm()), 1e-30) for each in copies]
        norms[-1] = norms[-1 - book.track.offset]  # the error is that of what was rounded
        if not book.data:
            book.data = [each.sort().values for each in copies if len(each) == book.size]
        least, made = math.inf, result.detach().float().reshape(-1)
        for placed, norm, unit in zip(copies, norms, book.track.units, strict=False):
            if len(placed) == len(made):
                off = (made - placed).abs()
                near = unit.numbers.abs() / 2 + SPACING * placed.abs()
                here, by_chance = (float((each <= near).float().mean()) for each in (off, (made.flip(0) - placed).abs()))
                if here > (1 + by_chance) / 2:
                    least = min(least, float(off.norm()) / norm)
        if math.isfinite(least):
            return least
        made = made.sort().values
        for data, norm in zip(book.data, norms, strict=False):
            for each in (made, -made.flip(0)):  # the negative numbers are in the opposite order
                scale = float(data @ each) / max(float(each @ each), 1e-30)
                for factor in (1.0, scale) if scale > 0 else (1.0,):
                    least = min(least, float((each * factor - data).norm()) / norm)
        return least if math.isfinite(least) else 0.0

    def finish(self, told: set[str]) -> None:
        """At the end of the run: records what was read by an op that needs the data. `told`: lines whose codes have another fault."""
        for line, found in self.wrong.items():
            if line not in told | self.parts and found.place is not None:
                self.codes.note(found.place, Misread(line, found.off, found.book.rounding + found.beside))
        self.held.clear()
        self.wrong = {}
