"""An intermediate in a format that is too low, or a formula that cancels.

With a wider format the error goes away, and it does not grow with the length of sums.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.kernel_floor import BLOCK, CANCELLED, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS, UNSURE
from precheck.analysis.limit import Limit
from precheck.rules.kernel_rounding.about import ABOUT
from precheck.rules.rule import Rule


class KernelRounding(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS, UNSURE)
