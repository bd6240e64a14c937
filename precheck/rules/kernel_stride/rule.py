"""The same numbers in contiguous memory give the right result.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_stride.about import ABOUT


class KernelStride(KernelRule):
    about = ABOUT
