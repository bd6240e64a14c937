"""Two whose difference is rounding.

Both lie within the floor of the exact result, and the exact runs agree.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from precheck.rules.pair import PairRule
from precheck.rules.rounding.about import ABOUT


class Rounding(PairRule):
    about = ABOUT
