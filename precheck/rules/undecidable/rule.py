"""Two whose difference this precision cannot tell from rounding.

The exact runs differ, by more than float32's floor and by less than that of the precision.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from precheck.rules.pair import PairRule
from precheck.rules.undecidable.about import ABOUT


class Undecidable(PairRule):
    about = ABOUT
