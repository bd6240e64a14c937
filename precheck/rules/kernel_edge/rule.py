"""The fault depends on the size: for the example's sizes, or for multiples of a tile, the candidate is right.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_edge.about import ABOUT


class KernelEdge(KernelRule):
    about = ABOUT
