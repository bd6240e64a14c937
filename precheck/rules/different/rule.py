"""Two that should be the same function, and are not.

The distance between the exact runs of both is no rounding. It counts from the floor of the precision on, for the whole tensor or any block of it.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from precheck.rules.different.about import ABOUT
from precheck.rules.pair import PairRule


class Different(PairRule):
    about = ABOUT
