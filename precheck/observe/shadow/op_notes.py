"""Notes on single ops beside their numbers: what was cut off, summed, refused or out of date. They have no limit, or the judge has it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precheck.observe.shadow.operations import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapped:
    """Numbers that a cast to integers took beyond the ends of their type, which the reference's do not pass: how many, and one of them."""

    count: int
    was: float
    became: float  # before the cast
    stored: int
    dtype: str
    end: int  # the one that it passed


@dataclasses.dataclass(frozen=True, slots=True)
class Renumbered:
    """Whole numbers that a cast to integers made others of: how many different ones, the greatest of all, one of them and what it became."""

    moved: int
    peak: float
    was: float
    became: float
    reach: float  # the format holds all whole numbers up to this


@dataclasses.dataclass(frozen=True, slots=True)
class Recut:
    """Numbers that are rounded to other whole numbers than the reference's, which lie clear of where that jumps: how many, and one of them."""

    count: int
    total: int
    was: float
    became: float
    size: float = 0.0  # mean |number|: rounded once to u, so many times u of them become another whole number


@dataclasses.dataclass(frozen=True, slots=True)
class Outdated:
    """A cast of a weight that was read after the weight had moved."""

    made: Operation
    written: Operation  # what has moved it
    name: str  # the weight's
    implicit: bool  # autocast's own
    share: float  # of elements that are others by now
    off: float  # |cast - weight| / |weight|


@dataclasses.dataclass(frozen=True, slots=True)
class Skew:
    """A cumulative sum that draws are looked up in, beside the reference's."""

    apart: float  # mean total variation distance: the probability by which a draw comes out otherwise
    empty: int  # steps that have no width here and one there, which nothing falls into
    steps: int
    summed: Operation
    roundoff: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tail:
    """Of what a uniform draw becomes by an op that has a pole: how many of the reference's numbers lie beyond all that the run has."""

    beyond: int
    total: int
    end: float  # the run's greatest magnitude
    farthest: float  # the reference's
    drawn: Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Summed:
    """A sum of gradients of one value, as autograd makes it one by one in a low format: the number of gradients, and how far off their exact sum
    it is."""

    terms: int
    off: float  # |sum - exact sum of the same terms| / |exact sum|


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """An op that torch raised for."""

    dtype: str  # the low format that it was for; "" where there is none
    types: tuple[str, ...] = ()  # those of its inputs, in their order, where it raised for these
