"""An intermediate has a format that is too low, or a formula cancels.

With a wider format the error disappears, and it does not grow with the length of sums.
"""

from __future__ import annotations

from precheck.analysis.cut_off import APART, NUMBERS
from precheck.rules import verdicts
from precheck.rules.rule import Rule


class KernelRounding(Rule):
    limits = (*verdicts.KERNELS, APART, NUMBERS)
