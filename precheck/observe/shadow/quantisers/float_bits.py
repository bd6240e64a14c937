"""Follows the bits of floats that a program rounds: it cuts bits off, and takes the rest for a float again.

If it adds random bits before, it rounds by chance. Such a float is judged against the one whose bits were taken: the errors have no mean if the
random bits start right below those that are kept, and carry into them. Otherwise it rounds as a cast does (`rounded_bits`).

A float that differs in its last bits alone, as one of bfloat16 whose other half is kept apart, is the same number, and its error is the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck.observe.shadow.memory.storages import Flat, Storages
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.probes import rounded_bits
from precheck.observe.shadow.probes.rounded_bits import Given
from precheck.observe.shadow.quantisers.code_notes import Skewed
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""The integers of the same size."""
KINDS = frozenset(INTEGERS.values())
UPPER = frozenset({torch.float32, torch.bfloat16})
"""Floats that have the upper bits of float32's."""
SIGNIFICAND = 23
"""Bits of float32's significand."""
RARE = 1.15
"""By Bernstein's inequality a sum of such errors exceeds √(2 L) times its standard deviation plus L/3 with a chance of e^-L. For one in 10^9 this is
6.4 standard deviations and 6.9. The limit is six times what is noted here."""


@dataclasses.dataclass(slots=True)
class Bits:
    """The bits of floats in one storage. `noisy`: other integers have been added, one for each float."""

    exact: Flat
    eps: float  # of the floats' format
    given: Given | None = None  # of float32 numbers
    noisy: bool = False
    missing: Flat | None = None  # what the shadows of the floats have more
    value: Value | None = None


class FloatBits:
    """The bits of a run's floats."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.held: Storages[Bits] = Storages()

    def viewed(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """After memory has been taken for another dtype."""
        taken = INTEGERS.get(source.dtype)
        if taken is not None and result.dtype is taken:
            self.held.put(result, self._bits(source, result))
            return
        found = self.held.get(source) if self.held and INTEGERS.get(result.dtype) is source.dtype else None
        if found is None:
            return
        if found.given is not None and result.dtype in UPPER:
            rounded_bits.drop_shadows(self.mode, found.given, result)
            if not found.noisy:
                rounded_bits.after_rounding(self.mode, found.given, found.exact.seen(result), result.detach())
            elif result.dtype is torch.float32:
                self._rounded(found.exact.seen(result), result.detach(), source)
                return
        if self.mode.memory.find(result) is None:
            self._same(found, result)

    def _bits(self, source: torch.Tensor, result: torch.Tensor) -> Bits:
        """What is known of floats whose bits are taken."""
        given = rounded_bits.given(self.mode, source) if source.dtype is torch.float32 else None
        found = Bits(Flat.of(result, source.detach().float()), torch.finfo(source.dtype).eps, given)
        cell = self.mode.memory.find(source)
        if cell is None:
            return found
        shadow = self.mode.memory.view(cell, source)
        missing = Flat.of(result, (shadow - source.detach().to(shadow.dtype)).float())
        return dataclasses.replace(found, missing=missing, value=cell.value)

    def _same(self, found: Bits, result: torch.Tensor) -> None:
        """Gives floats that are those whose bits were taken, but for their last bits, the errors of these."""
        if found.missing is None or found.value is None:
            return
        exact, made = found.exact.seen(result), result.detach().float()
        if bool(((made - exact).abs() <= max(found.eps, torch.finfo(result.dtype).eps) * exact.abs()).all()):
            reference = self.mode.replay.reference
            self.mode.memory.put(result, result.detach().to(reference) + found.missing.seen(result).to(reference), found.value)

    def follow(self, op: OpCall, result: Any) -> None:
        """After an op on integers."""
        if not isinstance(result, torch.Tensor) or result.dtype not in KINDS:
            return
        inputs = [each for each in op.tensors() if each.dtype in KINDS and each.layout is torch.strided]
        known = next(((each, found) for each in inputs if (found := self.held.get(each)) is not None), None)
        if known is None or known[0].shape != result.shape:
            return
        source, found = known
        added = op.base == "add" and any(self.held.get(each) is None and each.numel() == result.numel() for each in inputs)
        noisy = added or any(each.noisy for each in map(self.held.get, inputs) if each is not None)
        missing = None if found.missing is None else Flat.of(result, found.missing.seen(source))
        given = None if found.given is None else found.given.moved(source, result)
        exact = Flat.of(result, found.exact.seen(source))
        self.held.put(result, dataclasses.replace(found, exact=exact, given=given, noisy=noisy, missing=missing))

    def _rounded(self, exact: torch.Tensor, made: torch.Tensor, bits: torch.Tensor) -> None:
        """Bits with noise have become floats: notes the mean of their errors, in steps between neighbours among the numbers that have these bits."""
        counts = exact.isfinite() & (exact != 0)
        exact, made, ends = exact[counts], made[counts], (bits & -bits)[counts]
        ends = ends[ends > 0]
        if not len(ends):
            return
        cut = int(ends.min()).bit_length() - 1  # the lowest bit that any of them has
        step = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - 1 - SIGNIFICAND + cut)
        error = -(made - exact) * exact.sign() / step
        if float(error.abs().median()) > 1:
            return  # most are further away than a neighbour: they are not rounded
        carried = (exact.abs() / step) % 1  # the chance of each to go up
        spread = float((carried * (1 - carried)).sum()) ** 0.5
        mean, chance = float(error.mean()), (spread + RARE) / len(error)
        place = self.mode.described("view")
        self.mode.record(dataclasses.replace(place, number=self.mode.observation.seen, coded=Skewed(mean, True, True, chance)))
