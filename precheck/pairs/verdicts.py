"""The verdict on each tensor of a pair: equal bits, rounding, less accurate on one side, different, or undecidable.

Two questions are asked apart. The distance between the exact runs of the two is a difference of the functions, for which rounding is no excuse. It
counts from the floor of the precision on. What lies between a side's run and its own exact run is that side's rounding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch

from precheck.analysis import noise
from precheck.analysis.chance import ENOUGH, LUCK, largest
from precheck.pairs.compared_tensors import Subject
from precheck.pairs.distances import Squares, apart, every, lengths, place, same_bits, size, worst
from precheck.pairs.floors import Floor, ratio

Verdict = Literal["bitwise", "rounding", "model less accurate", "undecidable", "less accurate", "different"]
GRAVEST: tuple[Verdict, ...] = ("different", "less accurate", "undecidable", "model less accurate", "rounding", "bitwise")


@dataclasses.dataclass(frozen=True, slots=True)
class Sided:
    """What one subject was in the runs of both sides. `exact_other` follows the decisions of `other`'s run, `free` are exact runs along their own;
    None where they were not made, since nothing asked for them."""

    model: torch.Tensor | None
    other: torch.Tensor | None
    exact_other: torch.Tensor | None = None
    free_model: torch.Tensor | None = None
    free_other: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """One subject with its verdict. `r` is what decided it, in floors, `allowed` its limit, `where` the block that it is of ("" for the whole)."""

    subject: Subject
    verdict: Verdict
    r: float
    allowed: float
    where: str = ""
    drift: float = 0.0  # Euclidean, of `other` from the exact result
    floor: float = 0.0
    norm: float = 0.0  # of the exact result
    nonfinite: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    recorded: bool = False  # whether `other` is a recording, which has no exact run
    clear: bool = False  # whether `other` lies so near to the exact result, in every block, that its own exact run could tell nothing more
    why: str = ""  # where no number decided: "has shape (2, 3), and model's has (2, 4)"

    @property
    def relative(self) -> float:
        return self.drift / self.norm if self.norm else (0.0 if self.drift == 0 else math.inf)


def unlike(subject: Subject, other: torch.Tensor, why: str) -> Judged:
    """What differs whatever its numbers are."""
    return Judged(
        subject, "different", math.inf, noise.FAIL, why=why, shape=tuple(other.shape), dtype=str(other.dtype).removeprefix("torch."),
    )  # fmt: skip


def plain(subject: Subject, sided: Sided) -> Judged | None:
    """The verdict that needs no floor: equal bits, no gradient, another shape; None where numbers have to tell."""
    ours, theirs = sided.model, sided.other
    if ours is None or theirs is None:
        has, lacks = ("model", "other") if theirs is None else ("other", "model")
        present = ours if theirs is None else theirs
        if present is None or not bool(torch.count_nonzero(present)):
            return Judged(subject, "bitwise", 0.0, noise.FAIL)
        return Judged(subject, "different", math.inf, noise.FAIL, why=f"{has} has one, and {lacks} has none", shape=tuple(present.shape))
    common = {"shape": tuple(theirs.shape), "dtype": str(theirs.dtype).removeprefix("torch.")}
    if ours.shape != theirs.shape:
        why = f"has shape {tuple(theirs.shape)}, and model's has {tuple(ours.shape)}"
        return Judged(subject, "different", math.inf, noise.FAIL, why=why, **common)  # type: ignore[arg-type]
    if same_bits(ours, theirs):
        return Judged(subject, "bitwise", 0.0, noise.FAIL, **common)  # type: ignore[arg-type]
    return None


def judged(subject: Subject, sided: Sided, floor: Floor, *, samples: int, fine: Floor | None = None) -> Judged:
    """The verdict by numbers. `fine` is the floor that float32 would have, where the precision is lower."""
    assert sided.model is not None
    assert sided.other is not None
    if not sided.other.is_floating_point() and not sided.other.is_complex():
        return _chosen(subject, sided, floor)
    exact_other = floor.exact if sided.exact_other is None else sided.exact_other
    own, rival = apart(sided.other, exact_other), apart(sided.model, floor.exact)
    found = _Row(subject, sided.other, floor, own)
    if sided.free_other is not None and sided.free_model is not None and sided.free_other.shape == sided.free_model.shape:
        between = apart(sided.free_other, sided.free_model)
        bound = _bound(floor, sided.free_model)
        r, where, limit = _drowned(between, bound, floor, samples) if floor.drowned else _beyond(between, bound, found.shape)
        if between.excess or r > limit:
            return found.told("different", math.inf if between.excess else r, limit, where, between)
        if fine is not None and not floor.drowned:
            sharp, where, limit = _beyond(between, _bound(fine, sided.free_model), found.shape)
            if sharp > limit:
                return found.told("undecidable", r, noise.FAIL, where, own)
    elif sided.free_other is not None or sided.free_model is not None:
        return dataclasses.replace(found.told("different", math.inf, noise.FAIL, "", own), why="only one of the exact runs has it")
    limit = _allowed(sided.other.numel(), samples, floor.free.whole)
    extra, lost = max(0, own.excess - rival.excess), max(0, rival.excess - own.excess)
    r, r_rival = ratio(own.whole, floor.square.whole), ratio(rival.whole, floor.square.whole)
    beside = ratio(own.whole, max(floor.square.whole, rival.whole))
    if extra:
        return found.told("less accurate", math.inf, limit, "", own)
    if lost:
        return found.told("model less accurate", math.inf, limit, "", rival)
    if floor.drowned:
        return found.told("rounding", min(r, limit), limit, "", own)
    if r > limit and beside > limit:
        return found.told("less accurate", r, limit, "", own)
    clear = r <= noise.WARN and _beyond(own, floor.square, found.shape)[0] <= noise.FAIL
    if subject.kind == "update":  # blocks of an update err as their gradients do: a step is turned round, one element at a time
        return dataclasses.replace(found.told("rounding", r, limit, "", own), clear=r <= noise.WARN)
    ratios, spot = _blocks(own, floor, rival, found.shape, samples)
    if spot and ratios > 1:
        return found.told("less accurate", ratios * limit, limit, spot, own)
    if r_rival > limit and ratio(rival.whole, max(floor.square.whole, own.whole)) > limit:
        return found.told("model less accurate", r_rival, limit, "", rival)
    return dataclasses.replace(found.told("rounding", r, limit, "", own), clear=clear)


def agreed(subject: Subject, sided: Sided, floor: Floor) -> Judged | None:
    """`rounding`, where the two runs are near to one another, in whole and in every block; None where they are not, and exact runs have to tell."""
    assert sided.model is not None
    assert sided.other is not None
    if not (sided.other.is_floating_point() or sided.other.is_complex()) or sided.other.dtype != sided.model.dtype:
        return None
    between = apart(sided.other, sided.model)
    found = _Row(subject, sided.other, floor, between)
    r = ratio(between.whole, floor.square.whole)
    if between.excess or r > noise.WARN or not (floor.drowned or _beyond(between, floor.square, found.shape)[0] <= noise.FAIL):
        return None
    return dataclasses.replace(found.told("rounding", r, noise.FAIL, "", between), clear=True)


def evident(subject: Subject, sided: Sided, floor: Floor, fine: Floor) -> Judged | None:
    """`rounding`, where the exact runs agree by a rounding of the `fine` format and both sides err alike; None where noise runs have to tell.

    A side that errs no more than twice as much as the other is not the less accurate one, whatever the floor.
    """
    shapes = {each.shape for each in (sided.model, sided.exact_other, sided.free_model, sided.free_other) if each is not None}
    if sided.other is None or sided.free_model is None or sided.free_other is None or sided.exact_other is None or shapes != {sided.other.shape}:
        return None
    if not (sided.other.is_floating_point() or sided.other.is_complex()) or sided.model is None:
        return None
    between = apart(sided.free_other, sided.free_model)
    own, rival = apart(sided.other, sided.exact_other), apart(sided.model, floor.exact)
    found = _Row(subject, sided.other, floor, own)
    if between.excess or own.excess or rival.excess or _beyond(between, fine.square, found.shape)[0] > noise.FAIL:
        return None
    bound = Squares(max(floor.square.whole, rival.whole), [torch.maximum(a, b) for a, b in zip(floor.square.blocks, rival.blocks, strict=True)])
    r = ratio(own.whole, bound.whole)
    if max(r, ratio(rival.whole, max(floor.square.whole, own.whole))) > noise.WARN or _beyond(own, bound, found.shape)[0] > noise.FAIL:
        return None
    return dataclasses.replace(found.told("rounding", r, noise.FAIL, "", own), clear=True)


class _Row:
    """What all verdicts on one subject say alike."""

    def __init__(self, subject: Subject, other: torch.Tensor, floor: Floor, own: Squares) -> None:
        self.subject, self.floor, self.own = subject, floor, own
        self.shape = tuple(torch.view_as_real(other).shape if other.is_complex() else other.shape)
        self.other = other

    def told(self, verdict: Verdict, r: float, allowed: float, where: str, drift: Squares) -> Judged:
        return Judged(
            self.subject, verdict, r, allowed, where, math.sqrt(drift.whole), math.sqrt(self.floor.square.whole), math.sqrt(self.floor.norm.whole),
            drift.excess, tuple(self.other.shape), str(self.other.dtype).removeprefix("torch."),
        )  # fmt: skip


def _drowned(between: Squares, bound: Squares, floor: Floor, samples: int) -> tuple[float, str, float]:
    """Of what is zero on paper: two runs' rounding, which luck scatters, so that no block tells anything."""
    limit = noise.FAIL if samples < ENOUGH else _allowed(1, samples, floor.free.whole)
    return ratio(between.whole, bound.whole), "", limit


def _bound(floor: Floor, free: torch.Tensor) -> Squares:
    """The floor for what was decided freely: where the run under the precision decided otherwise, a tensor may be zero there and not here."""
    norm, count = size(free), max(1, free.numel())
    parts = [torch.maximum(each, floor.rounding * part.clamp(min=norm.whole * each_length / count))
             for each, part, each_length in zip(floor.square.blocks, norm.blocks, lengths(tuple(free.shape)), strict=True)]  # fmt: skip
    return Squares(max(floor.square.whole, floor.rounding * norm.whole), parts)


def _beyond(between: Squares, floor: Squares, shape: tuple[int, ...]) -> tuple[float, str, float]:
    """A difference of exact runs, in floors: of the whole, or of the block where it is greatest. It is no matter of luck: one limit for all."""
    whole = ratio(between.whole, floor.whole)
    if whole > noise.FAIL:
        return whole, "", noise.FAIL
    part, partition, block = worst([(a / b.clamp(min=1e-300)).sqrt() for a, b in zip(between.blocks, floor.blocks, strict=True)])
    return (part, place(shape, partition, block), noise.FAIL) if part > noise.FAIL else (whole, "", noise.FAIL)


def _allowed(numel: int, samples: int, free: float) -> float:
    """In floors, of a tensor as a whole: more where few independent errors make all of its noise."""
    limit = noise.allowed(numel, samples)
    return limit if free >= numel else max(limit, LUCK * largest(max(1, round(free)), samples, 1))


def _blocks(own: Squares, floor: Floor, rival: Squares, shape: tuple[int, ...], samples: int) -> tuple[float, str]:
    """The block that errs most beside what is allowed to the largest of so many: how many times that, and where."""
    ratios = []
    partitions_ = zip(own.blocks, floor.square.blocks, rival.blocks, floor.free.blocks, lengths(shape), every(shape), strict=True)
    for theirs, bound, ours, free, length, count in partitions_:
        errors = free.clamp(1, length).round()
        limits = torch.zeros_like(errors)
        for each in errors.unique().tolist():
            limits[errors == each] = max(noise.FAIL, LUCK * largest(int(each), samples, count))
        ratios.append((theirs / torch.maximum(bound, ours).clamp(min=1e-300)).sqrt() / limits)
    value, partition, block = worst(ratios)
    return value, place(shape, partition, block) if partition >= 0 else ""


def _chosen(subject: Subject, sided: Sided, floor: Floor) -> Judged:
    """Integers and booleans are decisions: they agree where both exact runs decide alike."""
    found = _Row(subject, sided.other, floor, apart(sided.other, sided.model))  # type: ignore[arg-type]
    if sided.free_other is None or sided.free_model is None:
        return found.told("undecidable", 0.0, noise.FAIL, "", found.own)
    agree = sided.free_other.shape == sided.free_model.shape and bool(torch.equal(sided.free_other, sided.free_model))
    return found.told("rounding", 0.0, noise.FAIL, "", found.own) if agree else found.told("different", math.inf, noise.FAIL, "", found.own)
