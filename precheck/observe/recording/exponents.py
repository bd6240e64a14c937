"""Counts the elements of the reference's tensors in each binade. This shows what a format's range would lose.

It counts only where a shadow runs anyway: for results of modules and their gradients, for each parameter's first gradient, and for results
in which an error first appears.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch

from precheck.findings import Binades
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.measuring import SUSPECT
from precheck.observe.shadow.comparing.statistics import FEW, sampled
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.places.source import shortened
from precheck.observe.shadow.replaying.replay import addressable
from precheck.observe.shadow.training.loss_scales import LossScales
from precheck.torch_internals import no_dispatch
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.recording.recorder import Moved

_FIELDS = {torch.float32: (torch.int32, 23, 8), torch.float64: (torch.int64, 52, 11)}
"""For each format: the integer dtype of its size, stored bits of the significand, bits of the exponent."""

LOOKED_AT, _RUN = FEW, 64
"""Elements of a tensor that are counted, and the length of sampled runs. A share of 1 % is then known to a sixth of itself. Numpy counts these in
15 µs on a CPU, and eight times as many cost ten times as much."""
_PART = 1 << 16
"""Elements counted at a time on a CPU. The temporary integers then stay in its cache, which halves the time (1 ns an element)."""


class Exponents:
    """The histograms of one shadow run, by the tensor that was counted."""

    def __init__(self, memory: Memory, scales: LossScales) -> None:
        self.memory, self.scales = memory, scales
        self.found: dict[tuple[Any, ...], tuple[Binades, torch.Tensor]] = {}  # what was counted, and its `tally`
        self.came: set[tuple[Any, ...]] = set()  # parameters whose gradients have been counted
        self.gravity: dict[tuple[Any, ...], int] = {}  # of the result that was counted, by op and line

    def histograms(self) -> list[Binades]:
        return [counted(about, tallied) for about, tallied in self.found.values()]

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None:
        """Counts a tensor at a module's boundary. If a forward pass is repeated, the last one counts."""
        if kind in ("result", "update") or not addressable(tensor):
            return
        with no_dispatch():
            self._count((kind, name, step), name, kind, step, tensor)

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        """Displacements of weights are not counted."""

    def gradient(self, name: str, step: int, gradient: torch.Tensor, number: int) -> None:
        """Counts a parameter's first gradient. `number` distinguishes parameters without a name."""
        key = "parameter-gradient", name or number
        if key not in self.came:
            self.came.add(key)
            with no_dispatch():
                self._count(key, name, "parameter-gradient", step, gradient)

    def opened(self, operation: Operation, value: Value, shadow: torch.Tensor) -> None:
        """Counts a result with an error that its inputs do not have. `shadow` may be a sample. On each line, the first of the gravest counts."""
        gravity = _gravity(value)
        if not gravity or gravity <= max(map(_gravity, operation.inputs), default=0) or not 0 < operation.scale < math.inf:
            return
        place = operation.name, operation.phase, operation.module, operation.source
        if gravity > self.gravity.get(place, 0):
            about = Binades(
                "", "op", operation.step, value.dtype, math.prod(value.shape), scale=operation.scale,
                op=operation.title, phase=operation.phase, module=operation.module, source=shortened(operation.source),
            )  # fmt: skip
            self.gravity[place], self.found[place] = gravity, (about, tally(shadow).cpu())

    def _count(self, key: tuple[Any, ...], name: str, kind: str, step: int, tensor: torch.Tensor) -> None:
        scale, cell = self.scales.of(tensor), self.memory.find(tensor)
        shadow = tensor.detach() if cell is None else self.memory.view(cell, tensor)  # without a low-precision ancestor it is its own reference
        if tensor.numel() and math.isfinite(scale):  # without a known scale, a gradient's exponents are unknown
            about = Binades(name, kind, step, dtype_name(tensor.dtype), tensor.numel(), scale=scale)
            (counts,) = fetched([tally(sampled(shadow, LOOKED_AT, _RUN))])
            self.found[key] = about, counts


def _gravity(value: Value) -> int:
    """3 for Inf or NaN that the reference does not have, 2 for zeros, 1 for whole numbers that moved or elements without a correct digit, else 0."""
    return 3 if value.nonfinite else 2 if value.zeros else 1 if value.wholes_moved >= 2 or value.dead >= SUSPECT else 0


def tally(values: torch.Tensor) -> torch.Tensor:
    """The number of elements by biased exponent, and last the number of zeros. int64 on the tensor's device, without waiting for it."""
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype not in _FIELDS:
        values = values.float()
    integers, digits, width = _FIELDS[values.dtype]
    if values.is_cpu and values.numel() <= 2 * FEW:  # a sample has somewhat more than it was asked for
        return _tally_of_few(values.detach().resolve_neg().view(integers).clone().numpy().ravel(order="K"), digits, (1 << width) - 1)
    order = sorted(range(values.dim()), key=values.stride, reverse=True)  # the order of memory, so that a transposed matrix is not copied
    bits, most = values.resolve_neg().permute(order).view(integers).reshape(-1), (1 << width) - 1
    counts = torch.zeros(most + 1, dtype=torch.int64, device=bits.device)
    if bits.device.type == "cpu":
        for part in bits.split(_PART):
            counts += torch.bincount(part.bitwise_right_shift(digits).bitwise_and_(most), minlength=most + 1)
    else:  # bincount would wait for the greatest element
        one = torch.ones((), dtype=torch.int64, device=bits.device)
        counts.scatter_add_(0, bits.bitwise_right_shift(digits).bitwise_and_(most).long(), one.expand_as(bits))
    return torch.cat([counts, (values.numel() - torch.count_nonzero(values)).reshape(1)])


def _tally_of_few(bits: Any, digits: int, most: int) -> torch.Tensor:
    """The same with numpy, for few elements: its calls cost a tenth of torch's."""
    counts = numpy.bincount((bits >> digits) & most, minlength=most + 2)
    counts[most + 1] = bits.size - numpy.count_nonzero(bits << 1)
    return torch.from_numpy(counts)


def counted(about: Binades, tallied: torch.Tensor) -> Binades:
    """`about` with the counts of `tally`, shifted by the loss scale, which is rounded to a power of two."""
    counts = tallied.numpy()
    exponents, zeros, binades = len(counts) - 1, int(counts[-1]), counts[:-2].copy()
    binades[0] -= zeros
    taken = numpy.flatnonzero(binades)
    first, last = (int(taken[0]), int(taken[-1])) if taken.size else (0, -1)
    least = 1 - exponents // 2 - round(math.log2(about.scale))  # the first bin holds all subnormal numbers of the reference
    held = tuple(binades[first : last + 1].tolist())
    return dataclasses.replace(about, least=least + first, counts=held, zeros=zeros, nonfinite=int(counts[-2]))
