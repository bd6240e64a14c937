"""A gradient is wrong, for an input that requires one (or any floating input if none does), with random incoming gradients.

`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.
"""

from __future__ import annotations

from precheck.rules.kernel import KernelRule
from precheck.rules.kernel_gradient.about import ABOUT


class KernelGradient(KernelRule):
    about = ABOUT
