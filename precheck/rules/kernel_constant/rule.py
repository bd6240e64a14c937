"""Two draws of inputs give one result, bit for bit, where the reference gives two.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from precheck.rules.kernel_constant.about import ABOUT
from precheck.rules.rule import Rule


class KernelConstant(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT
