"""Notes that an `Operation` or a `Value` carries beside its numbers: wrapped integers, outdated casts, refused ops, dropped ancestors and others.

Limits on them are in the rules.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precheck.observe.shadow.operations import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapped:
    """Numbers that a cast to integers takes out of the range of their type, unlike the reference's: how many, and one example."""

    count: int
    was: float
    became: float  # before the cast
    stored: int
    dtype: str
    end: int  # the end of the range that it passed


@dataclasses.dataclass(frozen=True, slots=True)
class Renumbered:
    """Whole numbers that a cast to integers turned into others: how many different ones, the greatest number of all, and one example."""

    moved: int
    peak: float
    was: float
    became: float
    reach: float  # the format holds all whole numbers up to this


@dataclasses.dataclass(frozen=True, slots=True)
class Flips:
    """Rows of a choice (or elements, without rows) that differ from the reference's, and how far the scores differed."""

    changed: int
    total: int
    ties: int = 0  # changed rows whose scores are equal at the edge of the choice, in the run
    blur: float = 0.0  # |error of scores| / |scores - row mean|: a choice depends on differences only
    swapped: float = 1.0  # mean share of a changed row's choices that the reference did not choose
    flushed: int = 0  # of `ties`, those whose equal scores are zero in the run, and not in the shadow


@dataclasses.dataclass(frozen=True, slots=True)
class Recut:
    """Numbers that are rounded to other integers than in the reference, by more than the reference's own rounding explains: how many, one example."""

    count: int
    total: int
    was: float
    became: float
    size: float = 0.0  # of whole numbers the mean |number|: rounded once to u, so many times u of them become another
    places: frozenset[int] = frozenset()  # which elements of the sample they are
    beyond: tuple[float, float, float] | None = None  # the one furthest beyond all of the reference: was, became, the reference's end there


@dataclasses.dataclass(frozen=True, slots=True)
class LetThrough:
    """Numbers above a bound in the run and below it in the reference: how many, and the one that is furthest from the bound on both sides.

    `apart`: that number is at least so many times the bound in the run, and the bound is at least so many times the reference's number.
    """

    count: int
    total: int
    bound: float
    was: float
    became: float
    apart: float


@dataclasses.dataclass(frozen=True, slots=True)
class Mistaken:
    """Answers of a comparison that differ from the reference's, of numbers that are too far apart for rounding to decide: how many."""

    count: int
    total: int


@dataclasses.dataclass(frozen=True, slots=True)
class LostBound:
    """A bound that became 0, 1 or -1 in the format of a comparison, whose answers are all alike by that: how many differ from the reference's."""

    count: int
    total: int
    bound: float
    held: float
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class Outdated:
    """A cast of a weight that was read after the weight had moved."""

    made: Operation
    written: Operation  # the op that moved the weight
    name: str  # the weight's
    implicit: bool  # whether autocast made the cast
    share: float  # of elements that have changed since
    off: float  # |cast - weight| / |weight|


@dataclasses.dataclass(frozen=True, slots=True)
class Skew:
    """A sampler on a cumulative sum, compared with the reference's."""

    apart: float  # mean total variation distance: the least probability of a different draw
    empty: int  # steps of width zero in the run only, which no draw can reach
    steps: int
    summed: Operation
    roundoff: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tail:
    """The tail that an op with a pole makes from a uniform draw: how many of the reference's numbers lie beyond the run's greatest."""

    beyond: int
    total: int
    end: float  # the run's greatest magnitude
    farthest: float  # the reference's greatest magnitude
    drawn: Operation


@dataclasses.dataclass(frozen=True, slots=True)
class Summed:
    """A sum of gradients that autograd accumulated in a low format: the number of gradients, and the relative error."""

    terms: int
    off: float  # |sum - exact sum of the same terms| / |exact sum|
    between: float  # the root mean square of the sums on the way / |exact sum|; large if gradients cancel


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """Why torch raised an error in an op, as far as formats tell."""

    dtype: str  # a low format among its arguments; "" if there is none
    types: tuple[str, ...] = ()  # the formats of its inputs in order, if their mixture was the reason


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Absorbed:
    """An addition that left bits unchanged although the shadow moved. Figures are since the accumulator's first absorbed addition."""

    share: float  # of the elements whose shadow moved, the share that did not move
    times: int  # absorbed additions, out of `additions` to this accumulator
    additions: int
    arrived: float  # share of the shadow's whole displacement that the run's covers
    intended: float  # |shadow's displacement| / |what the run started from|: of all elements, or of those that move further, if it is larger there
    lost: float  # |displacement - shadow's| / |shadow's|
    drift: float
    first: Operation | None = None
    carried: bool = False  # whether the accumulator is read, computed wide and stored low again in each iteration
    steady: float = 0.0  # |displacement| / sum of |additions|, without losses: 1 if all are in one direction, 1/√n if they are independent
    rounds: int = 0  # how often it was read through a cast, from a wide format that had stored it between turns of a training
    followed: float = 0.0  # `arrived`, beside the shadow's own displacement: what the program computes of the sum follows it there
    pace: float = 0.0  # how far the last addition moved the shadow, over the mean of all


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """What a walk back from a value would find among ancestors that have been dropped."""

    zeros: tuple[str, Operation] | None  # the rule and the op that explain its zeros
    rounding: Operation | None  # the op whose rounding caused its error
    iterations: Counter[tuple[str, ...]]  # how often the walk passes each op, by module and line
