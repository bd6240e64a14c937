"""Follows the bits of floats that a program takes for integers and for floats again.

A float that it rounds by chance, since it adds random bits and cuts bits off, is judged against the one whose bits were taken: the errors have no
mean if the random bits start right below those that are kept, and carry into them.

A float that differs in its last bits alone, as one of bfloat16 whose other half is kept apart, is the same number, and its error is the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck.observe.shadow.memory.storages import Flat, Storages
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.quantisers.code_notes import Skewed
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""The integers of the same size."""
KINDS = frozenset(INTEGERS.values())
SIGNIFICAND = 23
"""Bits of float32's significand."""
RARE = 1.15
"""By Bernstein's inequality a sum of such errors exceeds √(2 L) times its standard deviation plus L/3 with a chance of e^-L. For one in 10^9 this is
6.4 standard deviations and 6.9. The limit is six times what is noted here."""


@dataclasses.dataclass(slots=True)
class Bits:
    """The bits of floats in one storage. `noisy`: other integers have been added, one for each float."""

    exact: Flat
    noisy: bool = False
    wide: bool = True  # whether they are of float32 numbers
    eps: float = 0.0  # of the floats' format
    missing: Flat | None = None  # what the shadows of the floats have more
    value: Value | None = None


class FloatBits:
    """The bits of a run's float32 numbers."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.held: Storages[Bits] = Storages()

    def viewed(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """After memory has been taken for another dtype."""
        taken = INTEGERS.get(source.dtype)
        if taken is not None and result.dtype is taken:
            self.held.put(result, self._bits(source, result))
        elif INTEGERS.get(result.dtype) is source.dtype and self.held:
            found = self.held.get(source)
            if found is not None and found.noisy and found.wide and result.dtype is torch.float32:
                self._rounded(found.exact.seen(result), result.detach(), source)
            elif found is not None and found.missing is not None and found.value is not None and self.mode.memory.find(result) is None:
                self._same(found.exact, found.missing, found.value, found.eps, result)

    def _bits(self, source: torch.Tensor, result: torch.Tensor) -> Bits:
        """What is known of floats whose bits are taken."""
        cell, number = self.mode.memory.find(source), source.detach().float()
        wide, eps = source.dtype is torch.float32, torch.finfo(source.dtype).eps
        if cell is None:
            return Bits(Flat.of(result, number), wide=wide, eps=eps)
        shadow = self.mode.memory.view(cell, source)
        missing = Flat.of(result, (shadow - source.detach().to(shadow.dtype)).float())
        return Bits(Flat.of(result, number), wide=wide, eps=eps, missing=missing, value=cell.value)

    def _same(self, numbers: Flat, missing: Flat, value: Value, eps: float, result: torch.Tensor) -> None:
        """Gives floats that are those whose bits were taken, but for their last bits, the errors of these."""
        exact, made = numbers.seen(result), result.detach().float()
        if bool(((made - exact).abs() <= max(eps, torch.finfo(result.dtype).eps) * exact.abs()).all()):
            reference = self.mode.replay.reference
            self.mode.memory.put(result, result.detach().to(reference) + missing.seen(result).to(reference), value)

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
        exact = Flat.of(result, found.exact.seen(source))
        self.held.put(result, dataclasses.replace(found, exact=exact, noisy=noisy, missing=missing))

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
