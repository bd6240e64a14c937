"""Python's profiling hook shows that a call of the candidate runs a fallback. It is a warning, since a fallback for some inputs may be intended.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_fallback.about import ABOUT


class KernelFallback(KernelRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()
