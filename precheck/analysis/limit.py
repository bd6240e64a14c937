"""Limits: the numbers that take part in a verdict."""

from __future__ import annotations

import sys


class Limit(float):
    """A number that a verdict depends on.

    Computes as the float that it is. `unit` says what it counts or measures; `origin` where it comes from: a derivation, a measurement and its
    population, or a source. Each rule lists the limits that it uses (`rules.rule.Rule.limits`), and its page shows them.
    """

    __slots__ = ("module", "origin", "unit")

    def __new__(cls, value: float, unit: str, origin: str) -> Limit:
        made = super().__new__(cls, value)
        made.unit, made.origin, made.module = unit, " ".join(origin.split()), sys._getframe(1).f_globals["__name__"]
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        """Copies, as a finding's, are plain floats."""
        return float, (float(self),)

    unit: str
    origin: str
    module: str  # where it is defined
