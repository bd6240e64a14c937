"""The same call is made again, on the very same tensors and under another number of threads; the message says by how much results differ.

`kernels.causes` gives the class, `kernels.told` words it.
"""

from __future__ import annotations

from precheck.rules.kernel_nondeterminism.about import ABOUT
from precheck.rules.rule import Rule


class KernelNondeterminism(Rule):
    """`comparing_kernels` asks for it, which has calls and no run."""

    about = ABOUT
