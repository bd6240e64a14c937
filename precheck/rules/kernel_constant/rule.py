"""Two random inputs give the same result, bit for bit, where the reference gives two different ones.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel_constant.about import ABOUT
from precheck.rules.rule import Rule


class KernelConstant(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT
