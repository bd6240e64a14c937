"""The same call is right with the state before the first call, or with fresh memory.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_stale.about import ABOUT


class KernelStale(KernelRule):
    about = ABOUT
