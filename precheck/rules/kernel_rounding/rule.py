"""An intermediate has a format that is too low, or a formula cancels.

With a wider format the error disappears, and it does not grow with the length of sums.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.cut_off import APART, NUMBERS
from precheck.analysis.limit import Limit
from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_rounding.about import ABOUT


class KernelRounding(KernelRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (*KernelRule.limits, APART, NUMBERS)
