"""The reference with another mask gives the candidate's result, or the candidate is right if nothing is masked.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.kernel_floor import BLOCK, CANCELLED, ELEMENTS, NEARBY, OWN, ROUNDINGS, SPACINGS, TERMS, UNSURE
from precheck.analysis.limit import Limit
from precheck.rules.kernel_mask.about import ABOUT
from precheck.rules.rule import Rule


class KernelMask(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (OWN, NEARBY, BLOCK, ELEMENTS, SPACINGS, ROUNDINGS, CANCELLED, TERMS, UNSURE)
