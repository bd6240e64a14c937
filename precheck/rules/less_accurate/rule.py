"""The verdict that two implementations are the same function, but one has too much rounding error.

The distance of a run from its own exact run is its rounding error. It is compared with noise runs of the reference, and with the reference's own
rounding error.
`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.less_accurate.about import ABOUT
from precheck.rules.pair import PairRule


class LessAccurate(PairRule):
    about = ABOUT
