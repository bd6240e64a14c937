"""Defines the base class of the rules on pairs: two implementations are compared, and each verdict is a rule."""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.chance import CHANCE, LUCK
from precheck.analysis.exact_zeros import STRANGE, VANISHING
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL, REASSOCIATED, WARN
from precheck.rules.rule import Rule


class PairRule(Rule):
    """A verdict on a pair. `comparing` and `varying` use it, and `pairs.reporting` writes the message."""

    limits: ClassVar[tuple[Limit, ...]] = (WARN, FAIL, REASSOCIATED, CHANCE, LUCK, STRANGE, VANISHING)

