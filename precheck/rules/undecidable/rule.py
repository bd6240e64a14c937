"""The verdict that two implementations differ by no more than rounding in this precision.

The exact runs differ by more than float32's floor, and by less than that of the precision.
`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.pair import PairRule
from precheck.rules.undecidable.about import ABOUT


class Undecidable(PairRule):
    about = ABOUT
