"""Computes the noise floors of a comparison: how far correct rounding moves each tensor of the reference, as a whole and by block. Says whether exact
tensors agree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from precheck.analysis.chance import ENOUGH, independent_errors
from precheck.analysis.noise_floor import noise
from precheck.formats import FP64, ONE_ROUNDING
from precheck.pairs.capture import Captured
from precheck.pairs.compared_tensors import Of, Subject
from precheck.pairs.distances import Squares, lengths, size, squared_distance, sums_of_finite
from precheck.pairs.sides import FLOAT64_ROUNDOFF, ObservedRun
from precheck.precisions import Precision

PARTED = ONE_ROUNDING * 2.0**-20
"""Relative difference from which two exact tensors differ: the rounding that float32 is allowed (`analysis.noise.REASSOCIATED`)."""


@dataclasses.dataclass(slots=True)
class Floor:
    """The floor of one tensor: its exact value, its squared norm, and the squared floor, each as a whole and by block."""

    exact: torch.Tensor
    norm: Squares
    square: Squares
    free: Squares  # the number of independent errors in the noise
    rounding: float = 0.0  # the squared relative error of one rounding

    @property
    def drowned(self) -> bool:
        """Whether rounding alone is more than half of the tensor: it is zero in exact arithmetic (the gradient of a bias before a norm), or
        chaotic."""
        return self.square.whole > 0.25 * self.norm.whole


class Yardstick:
    """Floors for a precision, from the exact run of the reference and the noise runs that were added."""

    def __init__(
        self, precision: Precision, exact: ObservedRun, subjects: Sequence[Subject], *, of: Callable[[Subject], Of] = lambda subject: subject.of_model
    ) -> None:
        self.precision, self.subjects, self.samples, self.of = precision, subjects, 0, of
        self.roundoff = roundoff(precision)
        self.step = noise.step_near_zero(precision.compute) if precision.compute is not FP64 else 0.0
        self.exact = {subject: tensor for subject in subjects if (tensor := of(subject)(exact.captured)) is not None}
        self.norms = {subject: size(tensor) for subject, tensor in self.exact.items()}
        self.spreads: dict[Subject, Squares] = {}
        self.fourths: dict[Subject, Squares] = {}
        self.stored = {subject: self._stored(exact, subject) for subject in subjects if subject.kind == "update"}

    def add(self, run: Captured) -> None:
        """Adds one noise run."""
        self.samples += 1
        for subject, exact in self.exact.items():
            value = self.of(subject)(run)
            if value is not None and value.shape == exact.shape:
                found = squared_distance(value, exact)
                self.spreads[subject] = self.spreads[subject] + found if subject in self.spreads else found
                fourth = Squares(found.whole**2, [each.square() for each in found.blocks])
                self.fourths[subject] = self.fourths[subject] + fourth if subject in self.fourths else fourth

    def allow(self, own: Captured) -> None:
        """Adds what formats cost that the reference's optimizer itself casts to. `own`: its steps with them."""
        for subject in self.stored:
            value = self.of(subject)(own)
            if value is not None and value.shape == self.exact[subject].shape:
                self.stored[subject] += squared_distance(value, self.exact[subject]).whole

    def floor(self, subject: Subject, *, roundoff: float | None = None) -> Floor:
        """The floor under the precision, or under another unit roundoff."""
        taken = self.roundoff if roundoff is None else roundoff
        exact, norm = self.exact[subject], self.norms[subject]
        shape = tuple(torch.view_as_real(exact).shape if exact.is_complex() else exact.shape)
        count = max(1, torch.Size(shape).numel())
        spread = self.spreads.get(subject, norm.times(0.0)).times((taken / self.roundoff) ** 2 / max(1, self.samples))
        own, step = (ONE_ROUNDING * taken) ** 2, self.step**2 / 12 if roundoff is None else 0.0
        stored = self.stored.get(subject, 0.0) * (1.0 if roundoff is None else (taken / self.roundoff) ** 2)
        whole = spread.whole + own * norm.whole + count * step + stored
        blocks = [
            each + own * torch.clamp(parts, min=norm.whole * length / count) + length * step + stored * length / count
            for each, parts, length in zip(spread.blocks, norm.blocks, lengths(shape), strict=True)
        ]
        return Floor(exact, norm, Squares(whole, blocks), self._free(subject, norm), own)

    def _free(self, subject: Subject, norm: Squares) -> Squares:
        fourth, spread, runs = self.fourths.get(subject), self.spreads.get(subject), self.samples
        if fourth is None or spread is None or runs < ENOUGH:
            return Squares(math.inf, [torch.full_like(each, math.inf) for each in norm.blocks])
        whole = independent_errors(spread.whole / runs, fourth.whole / runs, runs)
        blocks = []
        for mean, square in zip(spread.blocks, fourth.blocks, strict=True):
            found = [independent_errors(float(a) / runs, float(b) / runs, runs) for a, b in zip(mean, square, strict=True)]
            each = torch.tensor(found, dtype=torch.float64, device=mean.device)
            some = each[each.isfinite()]
            typical = float(1 / (1 / some).mean()) if len(some) else math.inf  # few runs say little about one block, so all blocks are used
            blocks.append(each.clamp(max=typical))
        return Squares(whole, blocks)

    def _stored(self, exact: ObservedRun, subject: Subject) -> float:
        """The squared error that storing the weights after each step may add to their update."""
        records = [exact.trace.records.get(f"update:{name}@{subject.step}") for name in subject.ours]
        weight = sum(record.weight_norm**2 for record in records if record is not None)
        return subject.step * (ONE_ROUNDING * self.precision.param.unit_roundoff) ** 2 * weight


def roundoff(precision: Precision) -> float:
    """The unit roundoff that a comparison is judged by."""
    return FLOAT64_ROUNDOFF if precision.compute is FP64 else noise.roundoff(precision.roundoff)


def ratio(square: float, floor: float) -> float:
    """The ratio of a distance to a floor, both given as squares."""
    return math.sqrt(square / floor) if floor > 0 else (0.0 if square == 0 else math.inf)


def relative(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The distance of two tensors of one shape as a share of the second's norm, or infinity where only one of them is finite."""
    sums = sums_of_finite(value, exact)
    if sums is not None:
        return ratio(*sums)
    distance = squared_distance(value, exact)
    return math.inf if distance.excess else ratio(distance.whole, size(exact).whole)


def agree(value: torch.Tensor | None, exact: torch.Tensor | None) -> bool:
    """Whether two exact tensors are there, have one shape and do not differ."""
    return value is not None and exact is not None and value.shape == exact.shape and relative(value, exact) <= PARTED


def unlike(subjects: Sequence[Subject], ours: Captured, theirs: Captured) -> list[Subject]:
    """Those of which two exact runs differ."""
    return [each for each in subjects if not agree(each.of_other(theirs), each.of_model(ours))]


def range_of(whole: torch.Tensor, part: torch.Tensor) -> tuple[int, int] | None:
    """The axis along which a tensor is a range of another one, and where it begins. (0, 0) if both agree."""
    axes = [axis for axis in range(part.dim()) if part.dim() == whole.dim() and part.shape[axis] != whole.shape[axis]] or [0]
    if part.dim() != whole.dim() or len(axes) > 1 or not part.dim():
        return (0, 0) if agree(part, whole) else None
    axis, count = axes[0], part.shape[axes[0]]
    begins = range(whole.shape[axis] - count + 1)
    return next(((axis, begin) for begin in begins if agree(part, whole.narrow(axis, begin, count).to(part.dtype))), None)
