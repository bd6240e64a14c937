"""The fault needs no special size, layout, mask or earlier call, and a wider format does not remove it.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_contract.about import ABOUT


class KernelContract(KernelRule):
    about = ABOUT
