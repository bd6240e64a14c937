"""With the state that there was before the first call, or in memory of its own, the same call is right.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.kernel_floor import BLOCK, CANCELLED, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS, UNSURE
from precheck.analysis.limit import Limit
from precheck.rules.kernel_stale.about import ABOUT
from precheck.rules.rule import Rule


class KernelStale(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS, UNSURE)
