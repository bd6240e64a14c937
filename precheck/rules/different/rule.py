"""The verdict that two implementations are different functions.

The distance between the exact runs of both has no rounding in it. It counts if it is above the floor of the precision, for the whole tensor or any
block of it.
`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.different.about import ABOUT
from precheck.rules.pair import PairRule


class Different(PairRule):
    about = ABOUT
