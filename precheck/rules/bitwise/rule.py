"""Two runs whose results are equal.

Every tensor of both runs under the precision has the same bits.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.bitwise.about import ABOUT
from precheck.rules.pair import PairRule


class Bitwise(PairRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()  # equal bits need none
