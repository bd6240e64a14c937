"""Judges what a loop of a user's function has made of the roundings that one line makes in each of its turns, where only the author asks for them.

A filter may store its state low in each turn, and join its outputs. No single rounding has half of the error, but one change to the line repairs all.
The filter forgets, so an output has the roundings of the last turns only. As many as that are the n that it remembers: if the square of its error is
divided among the turns by the shares s, n is 1/Σs² (with Σs = 1). If no later turn amplifies a rounding, n independent ones add up to √n of them, and
n that go one way to n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from precheck.analysis.noise_floor.noise import FAIL
from precheck.analysis.propagation import attribution
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.rounding.function_limits import ADDED, OWNED, asked
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.operations import Operation, Value

PARTS = 8
"""How many parts of a joined result are looked at: those with the largest errors, of which the result has most of its own."""


class Turns(NamedTuple):
    """A line that rounds in each turn. `limit`: how many unit roundoffs what it leaves may be off by."""

    cause: Operation
    turns: int
    limit: float


def judged(operation: Operation, value: Value, walked: Callable[[Value], Attribution]) -> Turns | None:
    """The line whose roundings made half of the error of a joined result, over all turns. `walked`: divides an error among the ops of the call.
    None if there is none, if the precision asks for low numbers there, or if `absorption` judges the line."""
    made = walked(value)
    cause = None if asked(made) else made.cause(attribution.written)
    if cause is None:
        return None
    line = {each: share for each, share in made.shares.items() if share and each.line == cause.line and each.name == cause.name}
    if sum(line.values()) < OWNED or any(each.absorbed is not None for each in line):
        return None
    parts = sorted((part for part in operation.inputs if part.maker is not None), key=lambda part: part.call_error * part.norm)[-PARTS:]
    return Turns(cause, len(line), _limit(max(map(_remembered, map(walked, parts)), default=0.0)))


def _remembered(made: Attribution) -> float:
    """How many roundings the error of one part has, by their shares."""
    squares = sum(share * share for share in made.shares.values())
    return sum(made.shares.values()) ** 2 / squares if squares else 0.0


def _limit(roundings: float) -> float:
    return max(ADDED, FAIL * ONE_ROUNDING * math.sqrt(roundings), ONE_ROUNDING * roundings)
