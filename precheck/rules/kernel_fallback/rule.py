"""Python's profiling hook tells which functions a call of the candidate runs. It is a warning: a fallback for some inputs may be meant.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from precheck.rules.kernel_fallback.about import ABOUT
from precheck.rules.rule import Rule


class KernelFallback(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT
