"""Results differ when the same call is repeated, on the same tensors or with another number of threads. The message says by how much.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel_nondeterminism.about import ABOUT
from precheck.rules.rule import Rule


class KernelNondeterminism(Rule):
    """`comparing_kernels` uses it for single calls, so it judges no run."""

    about = ABOUT
