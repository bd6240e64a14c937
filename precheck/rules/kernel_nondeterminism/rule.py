"""Results differ when the same call is repeated, on the same tensors, with another number of threads or on another
stream. The message says by how much.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_nondeterminism.about import ABOUT


class KernelNondeterminism(KernelRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()
