"""The verdict that two implementations differ only by rounding.

Both lie within the floor of the exact result, and the exact runs agree.
`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.pair import PairRule
from precheck.rules.rounding.about import ABOUT


class Rounding(PairRule):
    about = ABOUT
