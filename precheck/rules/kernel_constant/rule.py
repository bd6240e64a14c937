"""Two random inputs give the same result, bit for bit, where the reference gives two different ones.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from typing import ClassVar

from precheck.analysis.limit import Limit
from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_constant.about import ABOUT


class KernelConstant(KernelRule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = ()
