"""Finds Python numbers that a low format rounds to 1, so that they have no effect any more: a decay of 0.999."""

from __future__ import annotations

import dataclasses

from precheck.analysis import causes
from precheck.analysis.provenance import constant, rounded_bound
from precheck.analysis.rounding import Misrounded
from precheck.observe.shadow.operations import Operation, Value

NEAR = 8
"""The most ops between a constant and the op that shows its rounding: a power, a product, a cast."""


def behind(fact: Misrounded | None) -> Misrounded | None:
    """Returns the error, blamed on a constant if it comes from the rounding of one.

    If a share of 0.999 is rounded to 1, its difference to 1 is lost: in 1 - β, log(p), a sum of powers.
    """
    if fact is None or fact.mechanism not in ("cancellation", "amplified-rounding"):
        return fact
    cause = _only_cause(max(fact.shown.inputs, key=causes.absolute, default=None))
    if cause is None or rounded_bound(cause) is None:
        return fact
    return dataclasses.replace(fact, mechanism="vanished-constant", operation=cause)


def _only_cause(value: Value | None) -> Operation | None:
    """The constant that makes the whole error of a value: no other input on the way has half as much error."""
    for _ in range(NEAR):
        maker = None if value is None else value.maker
        if maker is None or constant(maker):
            return maker
        value = maker.drifting
        if value is None or any(2 * source.drift > value.drift for source in maker.inputs if source is not value):
            return None
    return None
