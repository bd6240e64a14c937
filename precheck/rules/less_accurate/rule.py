"""Two of the same function, of which one rounds more than it may.

The distance of a run from its own exact run is its rounding. It is compared with noise runs of the reference, and with the reference's own rounding.
`pairs.verdicts` gives the verdict of each tensor, `pairs.told` words it.
"""

from __future__ import annotations

from precheck.rules.less_accurate.about import ABOUT
from precheck.rules.pair import PairRule


class LessAccurate(PairRule):
    about = ABOUT
