"""Python's profiling hook shows that a call of the candidate runs a fallback. It is a warning, since a fallback for some inputs may be intended.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel_fallback.about import ABOUT
from precheck.rules.rule import Rule


class KernelFallback(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT
