"""The copies that are kept for the codes in one storage, with and without their scales, and the distance between them."""

from __future__ import annotations

import dataclasses
import math

import torch

from precheck.observe.shadow.code_notes import Uncancelled
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.storages import Flat

ALTERNATIVES = 8
AGREE = 2.0**-6
"""Two copies agree below this relative distance. A scale that was itself rounded to bfloat16 is off by less."""


@dataclasses.dataclass(slots=True)
class Track:
    """The copies for the codes in one storage, and what has been done to the codes."""

    exact: Flat
    plains: list[Flat]
    rounded: str  # the line that made the codes
    units: list[Flat] = dataclasses.field(default_factory=list)  # for each of `plains`, what one step of the codes is worth; empty if unknown
    scales: int = 1
    multipliers: int = 0
    sure: bool = True  # whether all factors were recognised as scales
    shifted: bool = False  # whether a zero point has been added
    dense: bool = False  # whether they have gone through a matrix product
    owed: int = 0  # corrections for zero points that are still to be subtracted from that product
    early: int = 0  # multipliers before that product
    read: bool = False  # whether an op has read it
    last: Operation | None = None  # the latest multiplication


def alternatives(tracks: list[Track]) -> int:
    """How many plain copies a result of these tracks has."""
    distinct = {id(track): len(track.plains) for track in tracks}
    return min(ALTERNATIVES, math.prod(distinct.values()))


def neutral(factor: torch.Tensor) -> bool:
    """Whether a factor is a single number, or consists of -1, 0 and 1."""
    return factor.numel() == 1 or bool((factor.abs() * (1 - factor.abs()) == 0).all())


def distance(exact: torch.Tensor, plain: torch.Tensor) -> float:
    """|exact - plain| / |plain|."""
    return float((exact - plain).norm() / plain.norm().clamp_min(1e-30))


def ratios(exact: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """The sorted ratios |exact / plain|. Small elements are left out, since cancellation makes theirs meaningless."""
    large = plain.abs() > 0.003 * plain.abs().amax()
    return (exact[large] / plain[large]).abs().sort().values


def uncancelled(track: Track) -> Uncancelled | None:
    """The error of codes at a place where their scales must have cancelled. None if they have."""
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
