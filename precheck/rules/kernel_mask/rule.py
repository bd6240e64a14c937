"""The reference with another mask gives the candidate's result, or the candidate is right if nothing is masked.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_mask.about import ABOUT


class KernelMask(KernelRule):
    about = ABOUT
