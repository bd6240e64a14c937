"""What is kept of the codes in one storage: copies of what they stand for, and how far these are apart."""

from __future__ import annotations

import dataclasses
import math

import torch

from precheck.observe.shadow.code_notes import Uncancelled
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.storages import Flat

ALTERNATIVES = 8
AGREE = 2.0**-6
"""Relative distance below which two copies agree: a scale that was itself rounded to bfloat16 is off by less."""


@dataclasses.dataclass(slots=True)
class Track:
    """What a storage's codes stand for."""

    exact: Flat
    plains: list[Flat]
    rounded: str  # the line that made the codes
    units: list[Flat] = dataclasses.field(default_factory=list)  # what a step of the codes is, by plain; empty once that is not known
    scales: int = 1
    multipliers: int = 0
    sure: bool = True  # whether all multipliers are scales
    shifted: bool = False  # whether a zero point is in it
    dense: bool = False  # whether a product has been made of them
    owed: int = 0  # corrections by which zero points are still to be taken out of that product
    early: int = 0  # multipliers before that
    read: bool = False  # whether something follows from it
    last: Operation | None = None  # the latest multiplication


def alternatives(tracks: list[Track]) -> int:
    """How many plain copies something has that is made of these."""
    distinct = {id(track): len(track.plains) for track in tracks}
    return min(ALTERNATIVES, math.prod(distinct.values()))


def neutral(factor: torch.Tensor) -> bool:
    """Whether a factor is one number, or signs."""
    return factor.numel() == 1 or bool((factor.abs() * (1 - factor.abs()) == 0).all())


def distance(exact: torch.Tensor, plain: torch.Tensor) -> float:
    """|exact - plain| / |plain|."""
    return float((exact - plain).norm() / plain.norm().clamp_min(1e-30))


def ratios(exact: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """Of elements that are not small, in order: those of cancelled sums say nothing."""
    large = plain.abs() > 0.003 * plain.abs().amax()
    return (exact[large] / plain[large]).abs().sort().values


def uncancelled(track: Track) -> Uncancelled | None:
    """What is off about codes that have come to where their scales must have cancelled; None where nothing is."""
    nearest = min(track.plains, key=lambda each: distance(track.exact.numbers, each.numbers))
    off, found = distance(track.exact.numbers, nearest.numbers), ratios(track.exact.numbers, nearest.numbers)
    if not off > AGREE or not len(found):
        return None
    low, middle, high = (float(found[round(part * (len(found) - 1))]) for part in (0.1, 0.5, 0.9))
    spread = high / low if low > 0 else float("inf")
    whole = spread <= 1 + AGREE
    if whole and track.dense and track.early != track.multipliers:
        return None
    return Uncancelled(track.rounded, track.scales, track.multipliers, off, middle, spread, whole)
