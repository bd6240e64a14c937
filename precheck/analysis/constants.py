"""Numbers of Python's that a format rounds onto 1, so that they no longer do what they are there for: a decay of 0.999."""

from __future__ import annotations

import dataclasses

from precheck.analysis import causes
from precheck.analysis.provenance import constant, rounded_bound
from precheck.analysis.rounding import Misrounded
from precheck.observe.shadow.operations import Operation, Value

NEAR = 8
"""Ops between a constant and where it shows: a power, a product, a cast."""


def behind(fact: Misrounded | None) -> Misrounded | None:
    """The same error, but of the constant that it comes from, if it comes from one.

    A share of 0.999 that is 1 leaves no difference to 1: 1 - β, log(p), a sum of powers.
    """
    if fact is None or fact.mechanism not in ("cancellation", "amplified-rounding"):
        return fact
    cause = _alone(max(fact.shown.inputs, key=causes.absolute, default=None))
    if cause is None or rounded_bound(cause) is None:
        return fact
    return dataclasses.replace(fact, mechanism="vanished-constant", operation=cause)


def _alone(value: Value | None) -> Operation | None:
    """The constant that is all a value is off by: no other input on the way to it is off by half as much."""
    for _ in range(NEAR):
        maker = None if value is None else value.maker
        if maker is None or constant(maker):
            return maker
        value = maker.drifting
        if value is None or any(2 * source.drift > value.drift for source in maker.inputs if source is not value):
            return None
    return None
