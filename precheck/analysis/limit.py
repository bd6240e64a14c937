"""Defines `Limit`: a number that a verdict depends on, with its unit. The docstring below it says where it comes from."""

from __future__ import annotations

import sys


class Limit(float):
    """A number that a verdict depends on. It behaves as a float.

    `unit` says what it counts or measures. The docstring below it says where it comes from: a derivation, a measurement and its population, or a
    source. Each rule lists the limits that it uses (`rules.rule.Rule.limits`), and its page shows them.
    """

    __slots__ = ("module", "unit")

    def __new__(cls, value: float, unit: str) -> Limit:
        made = super().__new__(cls, value)
        made.unit, made.module = unit, sys._getframe(1).f_globals["__name__"]
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        """A copy, such as that in a finding, is a plain float."""
        return float, (float(self),)

    unit: str
    module: str  # where it is defined
