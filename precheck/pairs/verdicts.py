"""Gives the verdict on each tensor: equal bits, rounding, less accurate on one side, different, or undecidable.

Two questions are separate. The distance between the exact runs of the two is a difference of the functions, which rounding does not excuse. It counts
from the floor of the precision on. The distance between a side's run and its own exact run is that side's rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch

from precheck.analysis.chance import ENOUGH, LUCK, largest_ratio_by_chance
from precheck.analysis.noise_floor import noise
from precheck.analysis.noise_floor.noise import STRANGE, VANISHING
from precheck.pairs.compared_tensors import Subject
from precheck.pairs.distances import Squares, block_counts, block_name, greatest, lengths, same_bits, size, squared_distance
from precheck.pairs.floors import Floor, ratio
from precheck.pairs.recording import Kept

Verdict = Literal["bitwise", "rounding", "model less accurate", "undecidable", "less accurate", "different"]
GRAVEST: tuple[Verdict, ...] = ("different", "less accurate", "undecidable", "model less accurate", "rounding", "bitwise")


@dataclasses.dataclass(frozen=True, slots=True)
class Sided:
    """One subject in the runs of both sides. `exact_other` follows the decisions of `other`'s run, and the `free` ones their own. None if a run was
    not needed."""

    model: torch.Tensor | None
    other: torch.Tensor | None
    exact_other: torch.Tensor | None = None
    free_model: torch.Tensor | None = None
    free_other: torch.Tensor | None = None

    @property
    def both(self) -> bool:
        """Whether both sides have the subject, or neither."""
        return (self.model is None) == (self.other is None)


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """One subject with its verdict. `r` is the deciding number, in floors, `allowed` its limit, and `where` its block ("" for the whole tensor)."""

    subject: Subject
    verdict: Verdict
    r: float
    allowed: float
    where: str = ""
    drift: float = 0.0  # Euclidean distance of `other` from the exact result
    floor: float = 0.0
    norm: float = 0.0  # of the exact result
    nonfinite: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    recorded: bool = False  # whether `other` is a recording, which has no exact run
    clear: bool = False  # whether `other` is so close to the exact result, in every block, that its own exact run is not needed
    why: str = ""  # the reason, if no number decided: "has shape (2, 3), and model's has (2, 4)"

    @property
    def relative(self) -> float:
        return self.drift / self.norm if self.norm else (0.0 if self.drift == 0 else math.inf)


def different_because(subject: Subject, other: torch.Tensor | Kept, why: str) -> Judged:
    """The verdict `different` for a reason other than its numbers."""
    return dataclasses.replace(bitwise(subject, other), verdict="different", r=math.inf, why=why)


def bitwise(subject: Subject, other: torch.Tensor | Kept) -> Judged:
    return Judged(subject, "bitwise", 0.0, noise.FAIL, shape=tuple(other.shape), dtype=str(other.dtype).removeprefix("torch."))


def without_floor(subject: Subject, sided: Sided) -> Judged | None:
    """The verdict if it needs no floor: equal bits, no gradient, another shape. None if numbers have to decide."""
    ours, theirs = sided.model, sided.other
    if ours is None or theirs is None:
        has, lacks = ("model", "other") if theirs is None else ("other", "model")
        present = ours if theirs is None else theirs
        if present is None or not bool(torch.count_nonzero(present)):
            return Judged(subject, "bitwise", 0.0, noise.FAIL)
        return different_because(subject, present, f"{has} has one, and {lacks} has none")
    if ours.shape != theirs.shape:
        return different_because(subject, theirs, f"has shape {tuple(theirs.shape)}, and model's has {tuple(ours.shape)}")
    return bitwise(subject, theirs) if same_bits(ours, theirs) else None


def vanishing(subject: Subject, sides: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> Judged | None:
    """`rounding` for a tensor that is zero in exact arithmetic on each side that has it. `sides`: what the run of each gives, and the run in float64.
    If one side alone has the tensor, float64 must leave something of it, since a cut is no rounding."""
    sizes = [(size(given).whole, math.inf if exact is None else size(exact).whole) for given, exact in sides]
    if not sizes or any(exact > VANISHING**2 * given for given, exact in sizes) or (len(sizes) == 1 and not sizes[0][1]):
        return None
    return dataclasses.replace(bitwise(subject, sides[-1][0]), verdict="rounding")


def judged(subject: Subject, sided: Sided, floor: Floor, *, samples: int, fine: Floor | None = None) -> Judged:
    """The verdict by numbers. `fine` is the floor of float32, if the precision is lower."""
    assert sided.model is not None
    assert sided.other is not None
    if not sided.other.is_floating_point() and not sided.other.is_complex():
        return _chosen(subject, sided, floor)
    exact_other = floor.exact if sided.exact_other is None else sided.exact_other
    own, rival = squared_distance(sided.other, exact_other), squared_distance(sided.model, floor.exact)
    found = _Row(subject, sided.other, floor, own)
    if (apart := _apart(found, sided, floor, fine, samples)) is not None:
        return apart
    limit = _allowed(sided.other.numel(), samples, floor.free.whole)
    extra, lost = max(0, own.excess - rival.excess), max(0, rival.excess - own.excess)
    r, r_rival = ratio(own.whole, floor.square.whole), ratio(rival.whole, floor.square.whole)
    beside = ratio(own.whole, max(floor.square.whole, rival.whole))
    if extra:
        return found.told("less accurate", math.inf, limit, "", own)
    if lost:
        return found.told("model less accurate", math.inf, limit, "", rival)
    if floor.drowned:
        alone = sided.free_other is None  # no exact run says that `other` is zero too, so that its size has to
        beyond = alone and beside > STRANGE * limit
        return found.told("less accurate", r, limit, "", own) if beyond else found.told("rounding", min(r, limit), limit, "", own)
    if r > limit and beside > limit:
        return found.told("less accurate", r, limit, "", own)
    clear = r <= noise.WARN and _beyond(own, floor.square, found.shape)[0] <= noise.FAIL
    if subject.kind == "update":  # a block of an update may have any error where a step is reversed, one element at a time
        return dataclasses.replace(found.told("rounding", r, limit, "", own), clear=r <= noise.WARN)
    ratios, spot = _blocks(own, floor, rival, found.shape, samples)
    if spot and ratios > 1:
        return found.told("less accurate", ratios * limit, limit, spot, own)
    if r_rival > limit and ratio(rival.whole, max(floor.square.whole, own.whole)) > limit:
        return found.told("model less accurate", r_rival, limit, "", rival)
    return dataclasses.replace(found.told("rounding", r, limit, "", own), clear=clear)


def _apart(found: _Row, sided: Sided, floor: Floor, fine: Floor | None, samples: int) -> Judged | None:
    """The verdict by the exact runs of both sides, whose difference no rounding excuses. None if they agree, or if there are none."""
    ours, theirs = sided.free_model, sided.free_other
    if ours is None and theirs is None:
        return None
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return dataclasses.replace(found.told("different", math.inf, noise.FAIL, "", found.own), why="only one of the exact runs has it")
    between, bound = squared_distance(theirs, ours), _bound(floor, ours)
    r, where, limit = _drowned(between, bound, floor, samples) if floor.drowned else _beyond(between, bound, found.shape)
    if between.excess or r > limit:
        return found.told("different", math.inf if between.excess else r, limit, where, between)
    if fine is None or floor.drowned:
        return None
    sharp, where, limit = _beyond(between, _bound(fine, ours), found.shape)
    return found.told("undecidable", r, noise.FAIL, where, found.own) if sharp > limit else None


def agreed(subject: Subject, sided: Sided, floor: Floor) -> Judged | None:
    """`rounding` if the two runs are close, as a whole and in every block. None if exact runs have to decide."""
    assert sided.model is not None
    assert sided.other is not None
    if not (sided.other.is_floating_point() or sided.other.is_complex()) or sided.other.dtype != sided.model.dtype:
        return None
    between = squared_distance(sided.other, sided.model)
    found = _Row(subject, sided.other, floor, between)
    r = ratio(between.whole, floor.square.whole)
    if between.excess or r > noise.WARN or not (floor.drowned or _beyond(between, floor.square, found.shape)[0] <= noise.FAIL):
        return None
    return dataclasses.replace(found.told("rounding", r, noise.FAIL, "", between), clear=True)


def evident(subject: Subject, sided: Sided, floor: Floor, fine: Floor) -> Judged | None:
    """`rounding` if the exact runs agree up to a rounding of the `fine` format and both sides have similar errors. None if noise runs have to decide.

    A side whose error is at most twice the other's is not the less accurate one, whatever the floor.
    """
    shapes = {each.shape for each in (sided.model, sided.exact_other, sided.free_model, sided.free_other) if each is not None}
    if sided.other is None or sided.free_model is None or sided.free_other is None or sided.exact_other is None or shapes != {sided.other.shape}:
        return None
    if not (sided.other.is_floating_point() or sided.other.is_complex()) or sided.model is None:
        return None
    between = squared_distance(sided.free_other, sided.free_model)
    own, rival = squared_distance(sided.other, sided.exact_other), squared_distance(sided.model, floor.exact)
    found = _Row(subject, sided.other, floor, own)
    if between.excess or own.excess or rival.excess or _beyond(between, fine.square, found.shape)[0] > noise.FAIL:
        return None
    bound = Squares(max(floor.square.whole, rival.whole), [torch.maximum(a, b) for a, b in zip(floor.square.blocks, rival.blocks, strict=True)])
    r = ratio(own.whole, bound.whole)
    if max(r, ratio(rival.whole, max(floor.square.whole, own.whole))) > noise.WARN or _beyond(own, bound, found.shape)[0] > noise.FAIL:
        return None
    return dataclasses.replace(found.told("rounding", r, noise.FAIL, "", own), clear=True)


class _Row:
    """The values that all verdicts on one subject share."""

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
    """The distance, in floors, of tensors that are zero in exact arithmetic. Both are random rounding errors, so blocks are not judged."""
    limit = noise.FAIL if samples < ENOUGH else _allowed(1, samples, floor.free.whole)
    return ratio(between.whole, bound.whole), "", limit


def _bound(floor: Floor, free: torch.Tensor) -> Squares:
    """The floor for runs along their own decisions. The run under the precision may have decided otherwise, and a tensor may be zero there but not
    here."""
    norm, count = size(free), max(1, free.numel())
    parts = [torch.maximum(each, floor.rounding * part.clamp(min=norm.whole * each_length / count))
             for each, part, each_length in zip(floor.square.blocks, norm.blocks, lengths(tuple(free.shape)), strict=True)]  # fmt: skip
    return Squares(max(floor.square.whole, floor.rounding * norm.whole), parts)


def _beyond(between: Squares, floor: Squares, shape: tuple[int, ...]) -> tuple[float, str, float]:
    """A difference of exact runs, in floors: of the whole, or of the block where it is greatest. It does not depend on chance, so the limit is
    fixed."""
    whole = ratio(between.whole, floor.whole)
    if whole > noise.FAIL:
        return whole, "", noise.FAIL
    part, partition, block = greatest([(a / b.clamp(min=1e-300)).sqrt() for a, b in zip(between.blocks, floor.blocks, strict=True)])
    return (part, block_name(shape, partition, block), noise.FAIL) if part > noise.FAIL else (whole, "", noise.FAIL)


def _allowed(numel: int, samples: int, free: float) -> float:
    """The limit for a whole tensor, in floors. It is larger if few independent errors make all of its noise."""
    limit = noise.allowed(numel, samples)
    return limit if free >= numel else max(limit, LUCK * largest_ratio_by_chance(max(1, round(free)), samples, 1))


def _blocks(own: Squares, floor: Floor, rival: Squares, shape: tuple[int, ...], samples: int) -> tuple[float, str]:
    """The ratio of error to limit in the block where it is largest, and its place. The limit allows for the largest of that many blocks."""
    ratios = []
    partitions_ = zip(own.blocks, floor.square.blocks, rival.blocks, floor.free.blocks, lengths(shape), block_counts(shape), strict=True)
    for theirs, bound, ours, free, length, count in partitions_:
        errors = free.clamp(1, length).round()
        limits = torch.zeros_like(errors)
        for each in errors.unique().tolist():
            limits[errors == each] = max(noise.FAIL, LUCK * largest_ratio_by_chance(int(each), samples, count))
        ratios.append((theirs / torch.maximum(bound, ours).clamp(min=1e-300)).sqrt() / limits)
    value, partition, block = greatest(ratios)
    return value, block_name(shape, partition, block) if partition >= 0 else ""


def _chosen(subject: Subject, sided: Sided, floor: Floor) -> Judged:
    """The verdict on integers and booleans. They are decisions, and agree if both exact runs decide alike."""
    found = _Row(subject, sided.other, floor, squared_distance(sided.other, sided.model))  # type: ignore[arg-type]
    if sided.free_other is None or sided.free_model is None:
        return found.told("undecidable", 0.0, noise.FAIL, "", found.own)
    agree = sided.free_other.shape == sided.free_model.shape and bool(torch.equal(sided.free_other, sided.free_model))
    return found.told("rounding", 0.0, noise.FAIL, "", found.own) if agree else found.told("different", math.inf, noise.FAIL, "", found.own)
