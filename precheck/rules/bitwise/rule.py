"""The verdict that the results of two runs are equal.

Every tensor of both runs under the precision has the same bits.
`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.bitwise.about import ABOUT
from precheck.rules.pair import PairRule


class Bitwise(PairRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()  # equality of bits needs no limit
